"""ModelReplica: one model at one revision, served by `spec.replicas` replicas that clone their weights.

The spec. Each bound and each rule holds on both sides: the API server enforces what `crds/` says, and these models
refuse the same, so that the operator never works on something that the API server would not have taken.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from flashboot_agent.wire.observed_pod import MAX_RANKS
from flashboot_operator.api.base import ApiModel, camel, rules
from flashboot_operator.api.podshape import require_shape

ModelName = Annotated[
    str, StringConstraints(min_length=1, max_length=512, pattern=r"^[A-Za-z0-9/][A-Za-z0-9._/@:+-]*$")
]
Revision = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/@:+-]*$")]
Size = Annotated[int, Field(ge=1, le=1024)]

TOO_MANY_RANKS = f"parallelism.tensor times parallelism.pipeline are more than {MAX_RANKS} ranks per pod of the group"
UNEVEN = (
    "parallelism cannot be divided evenly over group.size pods: each pod runs the same number of pipeline stages, or "
    "several pods run the same number of tensor ranks of one stage"
)
EXPERT_DIVIDES = "parallelism.expert must divide parallelism.tensor: experts are spread over tensor ranks"


class Model(ApiModel):
    """The identity of the bytes."""

    name: ModelName
    """The model: a repository name such as `Qwen/Qwen3-30B-A3B`, or the path under which the engine finds it.
    Immutable: another model is another ModelReplica."""
    revision: Revision
    """The revision of the model, such as a commit hash. A change is rolled out like one of the template. Never a
    branch: replicas made at different times have to get the same bytes."""


class Group(ApiModel):
    """How many pods make one replica. Immutable."""

    size: Size = 1
    """Pods per replica. 1: a Deployment. More: a StatefulSet per replica, whose pods start and restart together."""


class Parallelism(ApiModel):
    """Over how many ranks a replica is spread, as the engine's arguments say. Immutable: it is part of what the arenas
    are."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            {"rule": "self.tensor % self.expert == 0", "message": EXPERT_DIVIDES, "fieldPath": ".expert"},
        )
    )
    tensor: Size = 1
    """Tensor parallel size (`--tp-size`). With `pipeline` it says which ranks there are: one arena for each."""
    pipeline: Size = 1
    """Pipeline parallel size (`--pp-size`)."""
    data: Size = 1
    """Data parallel size: of the attention part inside the tensor ranks (`--attn-dp-size`), or of whole copies in one
    pod (`--dp-size`), which share the arenas."""
    expert: Size = 1
    """Expert parallel size (`--ep-size`), inside the tensor ranks."""

    @model_validator(mode="after")
    def _possible(self) -> Parallelism:
        if self.tensor % self.expert:
            raise ValueError(EXPERT_DIVIDES)
        return self


class Transfer(ApiModel):
    """How weights travel from resident arenas to new replicas."""

    domain_policy: Literal["RequireSame", "PreferSame", "Any"] = "PreferSame"
    """Whether a parent has to be (RequireSame), should be (PreferSame) or need not be (Any) in the child's NVLink
    domain, which is the node label `nvidia.com/gpu.clique`. Nodes without the label form one domain. With RequireSame
    each domain that has pods and holds nothing loads for itself."""
    source_egress_percent: Annotated[int, Field(ge=1, le=100)] = 50
    """Share of its link's bandwidth that a node whose engine serves gives to clones; 100: no cap. In effect where the
    node's agent knows the link. With several such nodes, clones pull different parts from each."""
    clone_timeout_seconds: Annotated[int, Field(ge=1, le=3600)] = 60
    """How long an engine waits without progress for weights that are on their way before it fails, with a message that
    says on whom it waited."""
    on_mismatch: Literal["Fail", "LoadFromCheckpoint"] = "Fail"
    """What becomes of an engine whose identity no resident arena has, though pods like it have one of another: it fails
    and names what differs, or it loads the checkpoint into an arena of its own."""


class Residency(ApiModel):
    """Copies in host memory that outlive the pods, so that replicas which come back clone instead of loading."""

    model_config = ConfigDict(alias_generator=camel)
    host_copies: Annotated[int, Field(ge=0, le=64)] = 0
    """How many nodes keep the arenas of all ranks, those with pods included. Copies are not made for this, they are
    what replicas leave behind. A copy that no pod uses gives way to an arena for a pod where a node's memory does not
    suffice for both. 0: without replicas nothing is kept."""
    host_ttl_seconds: Annotated[int, Field(ge=0, le=604800)] = 3600
    """How long copies stay after the last pod. While there are pods they stay anyway."""


class Rollout(ApiModel):
    """How a change of the template or of the revision reaches the replicas."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            {
                "rule": "self.maxSurge > 0 || self.maxUnavailable > 0",
                "message": "rollout.maxSurge and rollout.maxUnavailable cannot both be 0: no pod could be replaced",
                "fieldPath": ".maxSurge",
            }
        )
    )
    max_surge: Annotated[int, Field(ge=0, le=4096)] = 1
    """How many replicas more than wanted may exist while replicas are replaced."""
    max_unavailable: Annotated[int, Field(ge=0, le=4096)] = 0
    """How many replicas fewer than wanted may serve while replicas are replaced."""
    progress_deadline_seconds: Annotated[int, Field(ge=1, le=86400)] = 900
    """After this long without progress the roll-out counts as stuck (condition Stalled)."""

    @model_validator(mode="after")
    def _moves(self) -> Rollout:
        if not self.max_surge and not self.max_unavailable:
            raise ValueError("rollout.maxSurge and rollout.maxUnavailable cannot both be 0")
        return self


class Spec(ApiModel):
    """What should be."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            {
                "rule": "self.model.name == oldSelf.model.name",
                "message": "model.name is immutable: another model is another ModelReplica. Another revision of the "
                "same model is rolled out",
                "fieldPath": ".model.name",
                "reason": "FieldValueForbidden",
            },
            {
                "rule": "self.parallelism == oldSelf.parallelism",
                "message": "parallelism is immutable: it is part of what the arenas are. Other sizes are another "
                "ModelReplica",
                "fieldPath": ".parallelism",
                "reason": "FieldValueForbidden",
            },
            {
                "rule": "self.group == oldSelf.group",
                "message": "group is immutable: the pods of a replica cannot be regrouped. Another size is another "
                "ModelReplica",
                "fieldPath": ".group",
                "reason": "FieldValueForbidden",
            },
            {
                "rule": f"self.parallelism.tensor * self.parallelism.pipeline <= {MAX_RANKS} * self.group.size",
                "message": TOO_MANY_RANKS,
                "fieldPath": ".parallelism.tensor",
            },
            {
                "rule": "self.parallelism.pipeline % self.group.size == 0 || "
                "(self.group.size % self.parallelism.pipeline == 0 && "
                "self.parallelism.tensor % (self.group.size / self.parallelism.pipeline) == 0)",
                "message": UNEVEN,
                "fieldPath": ".group.size",
            },
            {
                "rule": "!has(self.replicas) || has(self.template)",
                "message": "replicas needs a template: without one FlashBoot adopts pods of another workload, "
                "and that workload is scaled instead",
                "fieldPath": ".replicas",
                "reason": "FieldValueForbidden",
            },
            {
                "rule": "has(self.template) == has(oldSelf.template)",
                "message": "template can be changed, but not added or removed: "
                "it decides whether FlashBoot makes the pods or adopts them",
                "fieldPath": ".template",
                "reason": "FieldValueForbidden",
            },
        )
    )
    replicas: Annotated[int, Field(ge=0, le=4096)] | None = None
    """How many replicas should serve. Leave it out under an autoscaler; FlashBoot then starts with 1. Must be left out
    without a template."""
    model: Model
    """The model and its revision."""
    group: Group = Group()
    """How many pods make one replica. Immutable."""
    parallelism: Parallelism = Parallelism()
    """Over how many ranks a replica is spread. Immutable."""
    transfer: Transfer = Transfer()
    """How weights travel."""
    residency: Residency = Residency()
    """What stays in memory without pods."""
    rollout: Rollout = Rollout()
    """How a change of the template or of the revision reaches the replicas."""
    template: Annotated[dict[str, Any] | None, Field(json_schema_extra={"x-flashboot-schema": "pod-template"})] = None
    """The pods, as in a Deployment. FlashBoot adds its volume, its mount, its labels, the engine's loader arguments and
    a readiness probe to the container named `engine`, or to the first one; and, for a group of several pods, what tells
    the engines of each other (`--nnodes`, `--node-rank`, `--dist-init-addr`). Without a template, FlashBoot brings
    arenas to pods that carry the label `flashboot.io/model-replica` with this object's name."""

    @model_validator(mode="after")
    def _ranks_fit(self) -> Spec:
        sizes, pods = self.parallelism, self.group.size
        if sizes.tensor * sizes.pipeline > MAX_RANKS * pods:
            raise ValueError(TOO_MANY_RANKS)
        if sizes.pipeline % pods and (pods % sizes.pipeline or sizes.tensor % (pods // sizes.pipeline)):
            raise ValueError(UNEVEN)
        return self

    @model_validator(mode="after")
    def _replicas_need_template(self) -> Spec:
        if self.replicas is not None and self.template is None:
            raise ValueError("replicas needs a template")
        if self.template is not None:
            require_shape(self.template)
        return self
