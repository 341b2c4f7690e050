"""How many GPUs a pod asks for, and whether any node has as many."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

GPUS = "nvidia.com/gpu"


def devices_of(container: Mapping[str, Any]) -> int | None:
    """GPUs that the container asks for; None when it does not say, or not as a plain number."""
    return count((container.get("resources") or {}).get("limits") or {})


def count(quantities: Mapping[str, Any]) -> int | None:
    """GPUs in a list of resources."""
    text = str(quantities.get(GPUS, ""))
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else None


def more_than_any(asked: int | None, nodes: Iterable[int]) -> str | None:
    """What to say of a pod that asks for more GPUs than any node has. nodes: GPUs of each node; where none has any,
    nothing is known."""
    most = max(nodes, default=0)
    if asked is None or not most or asked <= most:
        return None
    return (
        f"it asks for {asked} {GPUS} and no node has more than {most}: spread a replica over several pods "
        "(spec.group.size), or make spec.parallelism and the limit smaller"
    )
