"""Stands in for SGLang's compiled kernel package where there is no accelerator; for tests and the demo only.

SGLang imports names from `sgl_kernel` at start even when it runs on a CPU, and the real package ships GPU binaries.
Every name here can be imported and none can be used: a call raises, so that no result ever comes from this file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_args: object, **_kwargs: object) -> NoReturn:
        raise RuntimeError(f"sgl_kernel.{name} was called, but this is the CPU stand-in that computes nothing")

    absent.__name__ = name
    return absent
