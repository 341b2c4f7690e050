"""The expected identity: what makes two pods' arenas interchangeable, as far as one can know before an engine runs.

It is a guess that the engine corrects: the agent compares full identities when an engine attaches. A guess that is too
coarse wastes a clone, one that is too fine seeds twice; neither can give an engine the wrong bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from flashboot_agent.core.identity import digest_of
from flashboot_operator.api.modelreplica import Spec

ENGINE = "engine"
"""Name of the container that runs the engine; without one of this name it is the first."""

MATTERS = ("image", "command", "args", "env", "envFrom", "resources")
"""Fields of the engine's container that may change what its arena looks like."""


PER_POD = frozenset({"LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX"})
"""Variables of LeaderWorkerSet that say which pod of which group it is: never what its arena looks like."""


def engine_index(pod_spec: Mapping[str, Any]) -> int:
    containers = pod_spec.get("containers") or []
    return next((i for i, c in enumerate(containers) if c.get("name") == ENGINE), 0)


def engine_hash(pod_spec: Mapping[str, Any], revision: str | None = None) -> str:
    """12 hex digits over what matters in the engine's container, and over the revision of the model where the container
    does not say it itself: FlashBoot appends it to the arguments of a ModelReplica's template."""
    containers = pod_spec.get("containers") or [{}]
    engine = containers[engine_index(pod_spec)]
    own = {**engine, "env": [entry for entry in engine.get("env") or [] if entry.get("name") not in PER_POD]}
    facts = {key: own[key] for key in MATTERS if own.get(key)}
    if revision is not None:
        facts["revision"] = revision
    return digest_of(facts).removeprefix("sha256:")[:12]


def template_hash(spec: Spec) -> str | None:
    """What pods of the present template and revision have as their hash; None when pods are adopted."""
    return engine_hash(spec.template["spec"], spec.model.revision) if spec.template is not None else None


def expected_identity(spec: Spec, *, template_hash: str, gpu_product: str, architecture: str) -> str:
    """The pod's own hash stands for the revision: the spec may name another one by now."""
    sizes = spec.parallelism
    parallelism = f"tp{sizes.tensor}-pp{sizes.pipeline}-dp{sizes.data}-ep{sizes.expert}"
    return _digest(spec.model.name, template_hash, parallelism, gpu_product, architecture)


@lru_cache(4096)  # asked for each pod and each node at every look
def _digest(model: str, template: str, parallelism: str, gpu_product: str, architecture: str) -> str:
    return digest_of(
        {
            "model": model,
            "template": template,
            "parallelism": parallelism,
            "gpuProduct": gpu_product,
            "architecture": architecture,
        }
    )
