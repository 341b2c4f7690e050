"""ModelReplica: the status. A bounded summary; the trees and times in full are in the operator's own API.

Everything here is computed anew from the workload, the pods and what the agents observe. Nothing in it is needed to go
on after a restart, except the names of sources, which keep an election stable.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from flashboot_operator.api.base import ApiModel

Text = Annotated[str, StringConstraints(max_length=1024)]
Digest = Annotated[str, StringConstraints(max_length=128)]
Name = Annotated[str, StringConstraints(max_length=253)]
Count = Annotated[int, Field(ge=0)]
Time = Annotated[str, StringConstraints(max_length=64), Field(json_schema_extra={"format": "date-time"})]

ConditionType = Literal["Available", "Ready", "SourceAvailable", "Degraded", "Reconciling", "Stalled"]


class Weights(ApiModel):
    """The weights that the replicas serve."""

    version: Count = 0
    """Version of the weights: 0 is the checkpoint."""
    digest: Digest | None = None
    """Digest over all bytes of the source's arenas, one per rank; equal on every replica."""


class Identity(ApiModel):
    """What was learned about one rank of one kind of pod on one kind of node."""

    template_hash: Digest
    """Hash of what matters in the engine's container (image, command, arguments, environment, resources) and of the
    revision of the model."""
    gpu_product: Annotated[str, StringConstraints(max_length=128)]
    """The node's GPU, or `cpu`."""
    rank: Annotated[str, StringConstraints(max_length=32)] = "tp0"
    """The rank, as in `tp0` or `pp1-tp0`."""
    expected_identity: Digest
    """What the operator could know before an engine ran."""
    identity: Digest | None = None
    """The full identity, as a seed's engine computed it."""
    arena_bytes: Count | None = None
    """Size of the arena in bytes."""


class Domain(ApiModel):
    """One NVLink domain (node label `nvidia.com/gpu.clique`), or `default`."""

    name: Name
    """Name of the domain."""
    resident_replicas: Count = 0
    """How many replicas' arenas the domain holds: of the rank that fewest of its nodes hold, sealed, their number."""
    source: Name | None = None
    """The pod whose arena feeds new replicas, or the node when no pod uses the arena."""
    source_node: Name | None = None
    """The node that holds the source of the first rank; the others' is normally there too."""
    source_reason: Annotated[str, StringConstraints(max_length=128)] | None = None
    """Why this source was elected, or why there is none; docs/reference/conditions.md lists the reasons."""
    source_message: Text | None = None
    """The same for people: names the nodes, and what speaks against others."""


class Copies(ApiModel):
    """What `spec.residency` keeps."""

    copies: Count
    """How many copies there are now, each with the arenas of all ranks; those that pods use count."""
    nodes: Annotated[list[Name], Field(max_length=64)]
    """Where they are."""
    unused_since: Time | None = None
    """When the last pod had gone. Absent while there is one, or one is wanted."""
    until: Time | None = None
    """Until when copies stay without a pod: `hostTTLSeconds` later."""


class EngineStart(ApiModel):
    """How long the phases of an engine's start took, as SGLang measures them. Of several ranks and engines the slowest
    counts, in each phase for itself."""

    load_weight_milliseconds: Count
    """Building the model and getting its weights, with the wait for the clone."""
    kv_cache_allocation_milliseconds: Count
    """Allocating the KV cache."""
    cuda_graph_milliseconds: Count
    """Capturing graphs, of all kinds together."""
    scheduler_milliseconds: Count
    """From the start of a scheduler process until it could run batches; the phases above are parts of it."""
    tokenizer_milliseconds: Count
    """From the launch of the engine's processes until all of them were up."""
    api_ready_milliseconds: Count | None = None
    """From the start of the engine's first process until its API was ready."""


class LastClone(ApiModel):
    """How the last scale-up went, once its replicas were all ready."""

    replicas: Count
    """How many replicas it brought up."""
    path: Annotated[str, StringConstraints(max_length=64)]
    """The transport that carried the bytes."""
    bytes: Count
    """Size of the arenas of one replica in bytes, all ranks together."""
    clone_milliseconds: Count
    """From the first byte asked for to the last arena sealed."""
    api_ready_milliseconds: Count
    """From the first pod's volume published to the last pod Ready."""
    engine: EngineStart | None = None
    """What the engines did meanwhile, once all of them have told."""
    completed_at: Time
    """When the last of these pods became Ready."""


class Condition(ApiModel):
    """One aspect of the state, in the form that all Kubernetes tools read."""

    type: ConditionType
    """Available, Ready, SourceAvailable, Degraded; Reconciling and Stalled exist only while they are True."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    observed_generation: Count
    """The generation of the spec that this was computed for."""
    last_transition_time: Time
    """When `status` last changed."""
    reason: Annotated[
        str, StringConstraints(min_length=1, max_length=128, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")
    ]
    """One word for programs; docs/reference/conditions.md lists them all."""
    message: Annotated[str, StringConstraints(max_length=4096)]
    """What it is about, for people: names the replica, the node and what to do."""


class Status(ApiModel):
    """What is."""

    observed_generation: Count | None = None
    """The generation of the spec that this status was computed for."""
    replicas: Count | None = None
    """How many replicas exist."""
    ready_replicas: Count | None = None
    """How many replicas are Ready, with the tensors of all ranks in sealed arenas."""
    updated_replicas: Count | None = None
    """How many replicas were made from the present template and revision."""
    selector: Text | None = None
    """Label selector of exactly one pod per replica, for autoscalers."""
    weights: Weights | None = None
    """The weights that the replicas serve."""
    identities: Annotated[list[Identity], Field(max_length=16)] | None = None
    """Learned identities, newest first."""
    domains: Annotated[list[Domain], Field(max_length=16)] | None = None
    """One entry per domain that has replicas; the one that has the source comes first."""
    residency: Copies | None = None
    """What `spec.residency` keeps; absent while it asks for no copies."""
    last_clone: LastClone | None = None
    """How the last scale-up by cloning went."""
    conditions: (
        Annotated[
            list[Condition],
            Field(
                max_length=16,
                json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
            ),
        ]
        | None
    ) = None
    """The conditions."""
