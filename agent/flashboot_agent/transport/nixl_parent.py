"""NIXL, the parent's side: Pull frames come over the connection, the bytes are written into the child's memory.

What always holds, as in csrc/server.cpp: bytes that are not verified never leave; replies come in the order of the
requests; after an empty reply at offset o every request beyond o is answered empty; a reply leaves only when its bytes
are in the child's memory. Nothing is ever written outside of the region that the child gave, and the parent's
metadata never leave, so that its own memory is open to nobody.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from flashboot_agent._native import MarksClosed
from flashboot_agent.core.errors import BadRequest, ParentUnreachable, UnknownArena
from flashboot_agent.transport.base import SourceArena
from flashboot_agent.transport.channel import Channel
from flashboot_agent.transport.nixl_agent import Agent, address_of
from flashboot_agent.wire import frames

_BYTES_OUT: Final = 3
"""The word of the marks (_native.pyi)."""
_LOOK: Final = 0.1
"""Seconds between two looks at whether the child is still there."""


def serve_over_nixl(channel: Channel, source: SourceArena, *, idle: float, silence: float) -> None:
    """Until the child ends the connection. Raises BadRequest, UnknownArena (the arena was dropped), DeadlineExceeded,
    ParentUnreachable."""
    target = channel.recv_frame(idle, "waiting for its memory")
    if target is None:
        return
    if not isinstance(target, frames.NixlTarget):
        raise BadRequest(f"expected NixlTarget, got {type(target).__name__}")
    if target.start + target.nbytes > source.meta.nbytes:
        raise BadRequest(f"its region [{target.start}, {target.start + target.nbytes}) leaves the arena")
    metadata = channel.recv_tail(target.metadata_bytes, silence, "reading its agent's metadata")
    memory = source.memory
    try:
        agent = Agent(f"writing to {channel.peer}")
        try:
            address = address_of(memory) + target.start
            agent.register(address, target.nbytes)
            agent.add_peer(target.agent, metadata)
            _Serving(channel, source, agent, _Region(target, address), silence).run(idle)
        finally:
            agent.close()  # before the memory: a transfer may still read it
    except MarksClosed:
        raise UnknownArena(f"{source.meta.arena} was dropped here") from None
    finally:
        memory.release()


@dataclass(frozen=True)
class _Region:
    target: frames.NixlTarget
    address: int
    """Of the same bytes here."""

    def holds(self, pull: frames.Pull) -> bool:
        target = self.target
        return target.start <= pull.offset and pull.offset + pull.length <= target.start + target.nbytes


class _Serving:
    def __init__(self, channel: Channel, source: SourceArena, agent: Agent, region: _Region, silence: float) -> None:
        self._channel = channel
        self._source = source
        self._agent = agent
        self._region = region
        self._silence = silence
        self._gone_back: int | None = None
        """Where the last empty reply was."""

    def run(self, idle: float) -> None:
        while (pull := self._next(idle)) is not None:
            end, marks = pull.offset + pull.length, self._source.marks
            if self._gone_back is not None and pull.offset > self._gone_back:
                self._reply(frames.Data(pull.offset, marks.valid_end(pull.offset), 0))
                continue
            valid = self._wait(pull, end)
            self._gone_back = None if valid >= end else pull.offset
            if valid >= end:
                self._write(pull)
            self._reply(frames.Data(pull.offset, valid, pull.length if valid >= end else 0))

    def _next(self, idle: float) -> frames.Pull | None:
        pull = self._channel.recv_frame(idle, "waiting for its next request")
        if pull is None:
            return None
        if not isinstance(pull, frames.Pull):
            raise BadRequest(f"expected Pull, got {type(pull).__name__}")
        if not self._region.holds(pull):
            raise BadRequest(f"asked for {pull.length} bytes at {pull.offset}, outside of the region that it gave")
        return pull

    def _wait(self, pull: frames.Pull, end: int) -> int:
        """The end of the verified run at the pull's offset, at the latest when the child's patience ends."""
        marks = self._source.marks
        deadline = time.monotonic() + pull.wait_ms / 1000
        while True:
            left = deadline - time.monotonic()
            valid = marks.wait_valid(pull.offset, end, max(0.0, min(left, _LOOK)))
            if valid >= end or left <= 0:
                return valid
            if self._channel.stream.peer_is_gone():
                raise ParentUnreachable(f"{self._channel.peer}: left while it waited for bytes")

    def _write(self, pull: frames.Pull) -> None:
        for bucket in self._source.buckets:
            while (wait := bucket.take(pull.length)) > 0:
                self._source.marks.wait_valid(0, self._source.meta.nbytes + 1, wait)  # ends early when the arena goes
        target = self._region.target
        at = pull.offset - target.start
        self._agent.write(self._region.address + at, target.address + at, pull.length, self._silence)
        self._source.marks.add(_BYTES_OUT, pull.length)

    def _reply(self, data: frames.Data) -> None:
        self._channel.send(
            frames.encode(data), silence=self._silence, whole=self._silence, what="answering it over NIXL"
        )
