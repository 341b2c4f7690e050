"""Which ranks a replica has, and which of them a pod of it runs. Pure.

The division is SGLang's own (`--nnodes` pods, `--node-rank` index): pipeline stages over the pods first, and the tensor
ranks of one stage over several pods where there are more pods than stages. Places follow from the pipeline and the
tensor size alone; the sizes of experts and of data parallelism only say what a tensor rank keeps (wire/place.py).
"""

from __future__ import annotations

from flashboot_agent.wire.place import Place


def places_of_pod(*, tensor: int, pipeline: int, pods: int = 1, index: int = 0) -> list[Place]:
    """The ranks of pod `index` of a replica of `pods` pods, by place.

    Raises ValueError when the ranks cannot be divided evenly over the pods, or there is no such pod.
    """
    if pipeline % pods and pods % pipeline:
        raise ValueError(f"{pipeline} pipeline stages cannot be divided evenly over {pods} pods")
    stages, pods_per_stage = max(pipeline // pods, 1), max(pods // pipeline, 1)
    if tensor % pods_per_stage:
        raise ValueError(f"{tensor} tensor ranks cannot be divided evenly over the {pods_per_stage} pods of a stage")
    if not 0 <= index < pods:
        raise ValueError(f"there is no pod {index} in a replica of {pods}")
    width = tensor // pods_per_stage
    stage, rank = stages * (index // pods_per_stage), width * (index % pods_per_stage)
    return [Place(pp=pp, tp=tp) for pp in range(stage, stage + stages) for tp in range(rank, rank + width)]


def in_order(place: Place) -> tuple[int, int, int]:
    """Sort key of places."""
    return place.draft, place.pp, place.tp


def names_of(places: list[Place]) -> str:
    """For people: `rank tp0`, `ranks tp0, tp1`, `ranks tp0 to tp7`."""
    names = [str(place) for place in sorted(places, key=in_order)]
    if len(names) > 4:
        return f"ranks {names[0]} to {names[-1]}"
    return f"rank{'s' if len(names) > 1 else ''} {', '.join(names)}"
