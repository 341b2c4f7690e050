"""Python's collector of cycles, where thousands of tensors are made at once."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Thousands of new objects would make Python look through all that live, many times, and find nothing.

    What was made inside counts as old afterwards, as what a collector has looked through once and kept: no tensor of a
    dictionary that is just made is garbage. Frozen objects are left alone, since thawing them would thaw all.
    """
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
        if gc.get_freeze_count() == 0:
            gc.freeze()
            gc.unfreeze()
    finally:
        if paused:
            gc.enable()
