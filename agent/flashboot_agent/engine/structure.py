"""The structure of a model before its load, as one digest: its modules, and the tensors that they begin with.

A last guard behind the identity. The seed takes it of its model on the meta device and it travels in the layout; every
attaching engine takes it of its own. Two models that differ in a module's class, or in the name, kind, class, type or
shape of a tensor, differ in it, whatever setting made them differ.
"""

from __future__ import annotations

import hashlib
from typing import Any

from flashboot_agent.core.errors import IdentityMismatch
from flashboot_agent.engine.walk import class_name, modules, tensors_in


def structure_of(model: Any) -> str:
    """`sha256:…`; the same in every process for the same model."""
    found = modules(model)
    lines = [f"{path} {class_name(type(module))}" for path, module in found.items()]
    for item in tensors_in(found):
        tensor = item.tensor
        lines.append(f"{item} {item.kind} {class_name(type(tensor))} {tensor.dtype} {tuple(tensor.shape)}")
    text = "\n".join(lines)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def require_structure(model: Any, seeds: str | None) -> None:
    """Raises IdentityMismatch unless `model`, built on the meta device, has the structure of the seed's model.

    seeds: what its layout says; None where the arena was not filled from a model.
    """
    mine = structure_of(model)
    if mine != seeds:
        raise IdentityMismatch(
            f"structure: engine {mine!r}, arena {seeds!r}: both identities are equal and the models are not; is a "
            "plug-in of SGLang installed in one of the images only?"
        )
