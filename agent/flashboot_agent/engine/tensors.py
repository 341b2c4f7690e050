"""A plain dictionary of tensors as something to pack: for programs that have weights by name and no model of SGLang's.

All bytes are shared and read-only, since a dictionary says of no tensor that somebody writes into it. Two tensors over
one storage are so again after an attach, and a storage travels whole, however little of it is viewed. The tensors given
are left as they are; whoever drops them lets their memory go while it is packed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flashboot_agent.core.errors import SeedFailed
from flashboot_agent.engine.plan import Plan, plan
from flashboot_agent.engine.views import place_of
from flashboot_agent.engine.walk import Found


def plan_tensors(tensors: Mapping[str, Any], identity: dict[str, str]) -> Plan:
    """Where each tensor goes: in the order of their names, so that every process plans the same.

    Raises SeedFailed when there is nothing to plan or something is no tensor, UnsupportedModel for a tensor that is not
    dense memory of the host.
    """
    if not isinstance(tensors, Mapping) or not tensors:
        raise SeedFailed(f"the weights must be a dictionary with at least one tensor, not {tensors!r:.100}")
    return plan(_found(tensors), identity, {})


def _found(tensors: Mapping[str, Any]) -> Iterator[Found]:
    import torch

    for name, tensor in tensors.items():
        if not isinstance(name, str) or not name or not isinstance(tensor, torch.Tensor):
            raise SeedFailed(f"the weights hold {name!r}: {type(tensor).__name__}; names and tensors are needed")
    plain: dict[int, Any] = {}
    for name in sorted(tensors):
        given = tensors[name]
        if id(given) not in plain:
            plain[id(given)] = _plain(given)
        yield Found(*place_of(name), "parameter", plain[id(given)])


def _plain(given: Any) -> Any:
    """Another object over the same memory, free to be moved. A parameter, since that is what nobody writes to."""
    import torch

    if given.layout != torch.strided:
        return given  # the plan refuses it
    return torch.nn.Parameter(given.detach().as_subclass(torch.Tensor), requires_grad=False)
