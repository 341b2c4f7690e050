"""Moving a model into an arena: memory that is freed on the way, and what is left when it is interrupted."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flashboot_agent.core.errors import BadRequest
from flashboot_agent.engine import walk
from flashboot_agent.engine.pack import Packing
from flashboot_agent.engine.plan import Plan, plan

MIB = 1 << 20


def arena(planned: Plan) -> tuple[int, int]:
    nbytes = planned.layout.arena_bytes
    descriptor = os.memfd_create("arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, nbytes)
    return descriptor, nbytes


class Wide(nn.Module):  # type: ignore[misc] # torch is not looked into
    """Four storages."""

    def __init__(self, nbytes: int = 4096) -> None:
        super().__init__()
        for number in range(4):
            self.register_parameter(
                f"w{number}", nn.Parameter(torch.full((nbytes // 2,), float(number), dtype=torch.half))
            )
        self.register_buffer("counter", torch.arange(5))


def anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no RssAnon")


def whole(model: Wide) -> bool:
    return all((getattr(model, f"w{number}") == number).all() for number in range(4)) and model.counter.sum() == 10


def test_the_memory_that_bytes_came_from_is_freed_storage_by_storage() -> None:
    model = Wide(40 * MIB)  # the C library gives memory of this size back at once
    planned = plan(walk.tensors(model), {}, {})
    descriptor, nbytes = arena(planned)
    before = anonymous_bytes()
    Packing(planned).move_to(descriptor, nbytes)
    assert before - anonymous_bytes() > 3 * 40 * MIB
    assert whole(model)


def test_a_seed_can_move_on_to_another_arena_wherever_it_was_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    for broken_at in range(4):
        model = Wide()
        planned = plan(walk.tensors(model), {}, {})
        packing = Packing(planned)
        look = packing._look_through

        def torn(number: int, readable: Any, broken_at: int = broken_at, look: Any = look) -> None:
            if number == broken_at:
                raise OSError("torn")
            look(number, readable)

        monkeypatch.setattr(packing, "_look_through", torn)
        with pytest.raises(OSError, match="torn"):
            packing.move_to(*arena(planned))
        assert whole(model)
        monkeypatch.undo()
        descriptor, nbytes = arena(planned)
        packing.move_to(os.dup(descriptor), nbytes)
        seal_like_an_agent(descriptor)
        assert whole(model)
        begin = model.w0.untyped_storage().data_ptr()
        assert {getattr(model, f"w{number}").untyped_storage().data_ptr() for number in range(4)} == {begin}
        os.close(descriptor)


def seal_like_an_agent(descriptor: int) -> None:
    """Fails while a mapping may write."""
    fcntl.fcntl(descriptor, 1033, 2 | 4 | 8)


def test_memory_that_is_smaller_than_announced_is_refused_and_nothing_moves() -> None:
    model = Wide()
    planned = plan(walk.tensors(model), {}, {})
    descriptor, nbytes = arena(planned)
    os.ftruncate(descriptor, nbytes - 4096)
    with pytest.raises(BadRequest, match="announced"):
        Packing(planned).move_to(descriptor, nbytes)
    assert whole(model)
