"""The shelf: which memfds the holder keeps, against which budget. All rules of the holder, without a socket.

A create is a generator, so that the poll loop can serve others between two steps of it; until it is through, its bytes
count as used and its name as taken, and closing it undoes everything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from dataclasses import dataclass

from flashboot_agent.holder import protocol
from flashboot_agent.memory import memfd
from flashboot_agent.memory.memfd import Pages


class ShelfError(Exception):
    """A refusal, with its kind for the program at the other end."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Slot:
    data: int
    record: int
    nbytes: int
    charged: int
    """Bytes that count against the budget: whole pages."""

    def close(self) -> None:
        os.close(self.data)
        os.close(self.record)


class Shelf:
    """Arena → slot."""

    def __init__(self, budget_bytes: int, available: Callable[[], int]) -> None:
        self.budget_bytes = budget_bytes
        self._available = available
        self.slots: dict[str, Slot] = {}
        self._pending: dict[str, int] = {}

    @property
    def used_bytes(self) -> int:
        return sum(slot.charged for slot in self.slots.values()) + sum(self._pending.values())

    def create(self, arena: str, nbytes: int, pages: Pages) -> Generator[None, None, Slot]:
        """Steps that end with the new slot.

        Raises ShelfError: Exists, or InsufficientMemory with the numbers."""
        if arena in self.slots or arena in self._pending:
            raise ShelfError(protocol.EXISTS, f"{arena} exists already; get it or drop it first")
        self._check(arena, nbytes)
        self._pending[arena] = nbytes
        opened: list[int] = []
        try:
            data = memfd.create(f"flashboot-{arena}", nbytes, pages)
            opened.append(data)
            self._pending[arena] = os.fstat(data).st_size
            for _ in memfd.reserve(data, pages):
                yield
            memfd.fix_size(data)
            record = memfd.create(f"flashboot-record-{arena}", protocol.RECORD_BYTES)
            opened.append(record)
        except OSError as error:
            memfd.close_all(opened)
            raise ShelfError(
                protocol.NO_MEMORY, f"the system gave no {nbytes} bytes ({pages} pages) for {arena}: {error.strerror}"
            ) from error
        except BaseException:  # closed half-way: the client is gone
            memfd.close_all(opened)
            raise
        finally:
            charged = self._pending.pop(arena)
        slot = Slot(data, record, nbytes, charged)
        self.slots[arena] = slot
        return slot

    def get(self, arena: str) -> Slot:
        slot = self.slots.get(arena)
        if slot is None:
            raise ShelfError(protocol.UNKNOWN, f"{arena} is not held here")
        return slot

    def put(self, arena: str, nbytes: int, data: int, record: int) -> None:
        """Keep descriptors that the agent had; the memory exists already, so the budget is only accounted."""
        if arena in self.slots or arena in self._pending:
            raise ShelfError(protocol.EXISTS, f"{arena} exists already")
        size = os.fstat(data).st_size
        if size < nbytes or os.fstat(record).st_size < protocol.RECORD_BYTES:
            raise ShelfError(protocol.BAD_REQUEST, f"the descriptors of {arena} are smaller than {nbytes} bytes say")
        self.slots[arena] = Slot(data, record, nbytes, size)

    def drop(self, arena: str) -> bool:
        slot = self.slots.pop(arena, None)
        if slot is not None:
            slot.close()
        return slot is not None

    def inventory(self, after: str) -> tuple[dict[str, int], bool]:
        names = sorted(name for name in self.slots if name > after)
        return {name: self.slots[name].nbytes for name in names[: protocol.PAGE]}, len(names) > protocol.PAGE

    def _check(self, arena: str, nbytes: int) -> None:
        free = self.budget_bytes - self.used_bytes
        if nbytes > free:
            raise ShelfError(
                protocol.NO_MEMORY,
                f"{arena} needs {nbytes} bytes; of the budget of {self.budget_bytes} bytes {max(0, free)} are free",
            )
        available = self._available()
        if nbytes > available:
            raise ShelfError(
                protocol.NO_MEMORY,
                f"{arena} needs {nbytes} bytes; the machine has {available} bytes left (the budget would allow it)",
            )
