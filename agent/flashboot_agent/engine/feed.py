"""SGLang's own loader on tensors that are given by name, not read from files: what traces and converts new weights.

A process that does this has an engine's configuration, but need not serve. Its identity must be the arena's: the same
tensors under another rank, dtype or version of SGLang make other bytes in the same places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flashboot_agent.core.errors import BadRequest, FlashBootError, SeedFailed
from flashboot_agent.core.identity import require_equal
from flashboot_agent.delta.permutation import Tensor
from flashboot_agent.engine import shadow
from flashboot_agent.engine.seed import usual
from flashboot_agent.wire.layout import Layout

Fetch = Callable[[Tensor], Any]
"""The values of a tensor, as a torch tensor in host memory."""


def described(values: Mapping[str, Any]) -> list[Tensor]:
    """Torch tensors, as maps and converters know them."""
    return [Tensor(name, _dtype(value), tuple(value.shape)) for name, value in values.items()]


def fetched(fetch: Fetch, tensor: Tensor) -> Any:
    """Raises BadRequest when it is not what was described: a loader casts and broadcasts without a word."""
    value = fetch(tensor)
    mine = (_dtype(value), tuple(value.shape), value.device.type)
    if mine != (tensor.dtype, tensor.shape, "cpu"):
        wanted = (tensor.dtype, tensor.shape, "cpu")
        raise BadRequest(f"{tensor.name}: {mine} was given, the trainer has {wanted}")
    return value.detach()


class Feed:
    def __init__(self, model_config: Any, device_config: Any, load_config: Any, identity: dict[str, str]) -> None:
        """`identity`: of this process (engine/identity.py)."""
        self._model_config, self._device_config, self._load_config = model_config, device_config, load_config
        self._identity = identity

    def require(self, layout: Layout) -> None:
        """Raises IdentityMismatch unless this process would fill the arena of this layout."""
        require_equal(self._identity, layout.identity, whose="arena")

    def load(self, weights: Iterable[tuple[str, Any]]) -> Any:
        """A new model, loaded and post-processed, with tables of its own (the process's may lie in an arena).

        Raises SeedFailed."""
        from sglang.srt.model_loader.loader import DefaultModelLoader

        class Fed(DefaultModelLoader):  # type: ignore[misc] # SGLang carries no types
            def _get_all_weights(self, model_config: Any, model: Any) -> Any:
                return iter(weights)

        with _failures_told(), shadow.tables_kept():
            loader = Fed(usual(self._load_config))
            return loader.load_model(model_config=self._model_config, device_config=self._device_config)

    def empty(self) -> Any:
        """A new model before its load, with tables of its own. Raises SeedFailed."""
        import torch
        from sglang.srt.model_loader.loader import _get_quantization_config, _initialize_model

        config = usual(self._load_config)
        with _failures_told(), shadow.tables_kept(), self._default_dtype(), torch.device(self._device_config.device):
            quantised = _get_quantization_config(self._model_config, config)
            return _initialize_model(self._model_config, config, quantised)

    def load_into(self, model: Any, weights: Iterable[tuple[str, Any]]) -> None:
        """Raises SeedFailed."""
        import torch
        from sglang.srt.model_loader.loader import DefaultModelLoader

        with _failures_told(), self._default_dtype():
            DefaultModelLoader.load_weights_only(model, weights, torch.device(self._device_config.device))

    def postprocess(self, root: Any, done: set[int]) -> None:
        """As SGLang's loader does after a load, for modules below `root` that are not `done`. Raises SeedFailed."""
        import torch
        from sglang.srt.model_loader.loader import _modules_with_quant_method, device_loading_context

        device = torch.device(self._device_config.device)
        with _failures_told(), self._default_dtype():
            for module, method in _modules_with_quant_method(root):
                if id(module) not in done:
                    done.add(id(module))
                    with device_loading_context(module, device):
                        method.process_weights_after_loading(module)

    def _default_dtype(self) -> Any:
        from sglang.srt.model_loader.utils import set_default_torch_dtype

        return set_default_torch_dtype(self._model_config.dtype)


@contextmanager
def _failures_told() -> Iterator[None]:
    try:
        yield
    except FlashBootError:
        raise
    except Exception as error:  # SGLang raises anything; it is reported with its reason and raised on
        raise SeedFailed(f"SGLang could not load the tensors given: {type(error).__name__}: {error}") from error


def _dtype(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.")
