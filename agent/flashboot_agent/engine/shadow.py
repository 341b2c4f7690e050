"""A model without memory that is as SGLang's load would have left it, but for the bytes: what attach binds tensors to.

SGLang's traps on this way, each held by a test: process-wide caches of rotary tables must not keep what was made on the
meta device, nor give what is another model's; tables that are made on a device by name are real even here; what the
load removes, stamps or makes anew must be so without a load.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from flashboot_agent.core.errors import UnsupportedModel
from flashboot_agent.engine import marks, remake, walk
from flashboot_agent.engine.plan import READ_ONLY_BUFFERS
from flashboot_agent.wire.layout import Layout


def build(model_config: Any, load_config: Any) -> Any:
    """The model's structure as SGLang's default loader makes it, without memory.

    Raises UnsupportedModel for a tensor in it that could not be given any.
    """
    import torch
    from sglang.srt.model_loader.loader import _get_quantization_config, _initialize_model
    from sglang.srt.model_loader.utils import set_default_torch_dtype

    quant_config = _get_quantization_config(model_config, load_config)
    with tables_kept(), set_default_torch_dtype(model_config.dtype), torch.device("meta"):
        model = _initialize_model(model_config, load_config, quant_config)
    _drop_tables(model)
    walk.require_none_hidden(model)
    return model


def as_loaded(model: Any, layout: Layout) -> None:
    """Remove, stamp and make on the model what the seed's load removed, stamped and made.

    Raises UnsupportedModel for an object that only a load can make.
    """
    modules = dict(model.named_modules())
    known = {walk.class_name(type(each)): type(each) for each in model.parameters()}
    added: dict[tuple[str, str], set[str]] = {}
    for name, attribute in ((name, each) for name, gone in layout.deleted.items() for each in gone):
        with _named(name, attribute):
            holder, last = walk.holder(modules[name], attribute)
            if hasattr(holder, last):
                delattr(holder, last)
    for name, attribute, value in ((name, *each) for name, left in layout.scalars.items() for each in left.items()):
        with _named(name, attribute):
            holder, last = walk.holder(modules[name], attribute)
            now = marks.of(holder, last)
            if marks.same(now, value):
                continue
            if value is None:
                setattr(holder, last, None)
            elif not isinstance(value, str) or not value.startswith("<"):
                _clear(holder, last, keep="attribute")
                setattr(holder, last, value)
            elif value.startswith("<parameter "):
                added[name, attribute] = _stand_in(holder, last, value, known)
            elif value.startswith(("<buffer", "<attribute ")):
                _clear(holder, last, keep="attribute" if value.startswith("<attribute ") else "buffer")
            elif not remake.remake(model, name, attribute, value):
                raise UnsupportedModel(f"the load left an object {value} in the seed's model; here is {now!r}")
    _require_metadata(layout, {place: keys for place, keys in added.items() if keys})


@contextmanager
def _named(module: str, attribute: str) -> Iterator[None]:
    """What fails inside is told with the place. A layout comes from elsewhere: nothing in it need fit this model."""
    place = f"{module}.{attribute}".removeprefix(".")
    try:
        yield
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{place}: {error}") from error
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise UnsupportedModel(f"{place}: the seed's load left it otherwise, and this model can't: {error}") from error


def _stand_in(module: Any, attribute: str, mark: str, known: dict[str, type]) -> set[str]:
    """A parameter without memory of the class that the mark names; what it carries comes from the one in its place.

    Returns the names of what that one did not carry.
    """
    import torch

    _, cls_name, wants_gradients, *carried = mark.strip("<>").split(" ")
    cls = torch.nn.Parameter if cls_name == walk.class_name(torch.nn.Parameter) else known.get(cls_name)
    if cls is None:
        raise UnsupportedModel(f"the load left a parameter {cls_name}; no parameter of this model is one")
    old = getattr(module, attribute, None)
    held = vars(old) if isinstance(old, torch.nn.Parameter) else {}
    parameter = torch.Tensor._make_subclass(cls, torch.empty(0, device="meta"), wants_gradients == "true")
    parameter.__dict__.update({key: held[key] for key in carried if key in held})
    _clear(module, attribute, keep="parameter")
    module._parameters[attribute] = parameter
    return set(carried) - held.keys()


def _require_metadata(layout: Layout, added: dict[tuple[str, str], set[str]]) -> None:
    """What a load adds to parameters are scalars, and these are in the layout; anything else can't travel."""
    for binding in layout.bindings if added else ():
        lost = added.get((binding.module, binding.attribute), set()) - layout.tensors[binding.tensor].attributes.keys()
        if lost:
            place = f"{binding.module}.{binding.attribute}".removeprefix(".")
            raise UnsupportedModel(f"the load left {min(lost)} on the parameter {place}; only scalars there can travel")


def _clear(holder: Any, attribute: str, *, keep: Literal["parameter", "buffer", "attribute"]) -> None:
    """Let nothing of another kind be there; what is of this kind stays, and with it its turn among the others."""
    import torch

    tables = {"attribute": vars(holder)}
    if isinstance(holder, torch.nn.Module):
        tables |= {"parameter": holder._parameters, "buffer": holder._buffers}
        if keep != "buffer":
            holder._non_persistent_buffers_set.discard(attribute)
    for kind, table in tables.items():
        if kind != keep:
            table.pop(attribute, None)


def _drop_tables(model: Any) -> None:
    """Take the memory from tables that the model made on a device by name; their bytes come from the arena."""
    import torch

    for module in model.modules():
        for key in READ_ONLY_BUFFERS & module._buffers.keys():
            if (table := module._buffers[key]) is not None and not table.is_meta:
                module._buffers[key] = torch.empty_like(table, device="meta")


@contextmanager
def tables_kept() -> Iterator[None]:
    """SGLang shares rotary modules and tables through caches of the process: ours on the meta device must not stay
    there, and a real one must not come from there."""
    from sglang.kernels.ops.attention.dsv4.rope import precompute_freqs_cis
    from sglang.srt.layers.rotary_embedding.factory import _ROPE_DICT

    saved = dict(_ROPE_DICT)
    _ROPE_DICT.clear()
    precompute_freqs_cis.cache_clear()
    try:
        yield
    finally:
        precompute_freqs_cis.cache_clear()
        _ROPE_DICT.clear()
        _ROPE_DICT.update(saved)
