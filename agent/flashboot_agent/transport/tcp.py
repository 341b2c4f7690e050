"""TCP, with TLS or plain, the child's side: a connection for each lane; the bytes themselves go through `_native`.

What always holds: the parent proves by its certificate that it is the node that the operator named, before it learns
what we ask for; the metadata are complete and agree with each other before a byte is pulled; a parent that sends
nothing while bytes are due is given up after a bounded time, and a parent that has nothing itself is not.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from flashboot_agent._native import LanePuller
from flashboot_agent.core.chunks import DIGEST_CHUNK_BYTES
from flashboot_agent.core.digest import root_digest
from flashboot_agent.core.errors import (
    CommitRefused,
    DeadlineExceeded,
    FlashBootError,
    InsufficientMemory,
    ParentUnreachable,
    TornFrame,
    from_problem,
)
from flashboot_agent.transport import address
from flashboot_agent.transport.base import ArenaMeta, Progress, Pull, Sink, Transport
from flashboot_agent.transport.channel import Channel, stream_errors
from flashboot_agent.transport.tls import CredentialSource, TlsContexts
from flashboot_agent.wire import frames
from flashboot_agent.wire.arena import Peer
from flashboot_agent.wire.problem import Problem
from flashboot_agent.wire.trust import agent_uri

SLOWEST: Final = 2 << 20
"""Bytes a second: a parent that brings a request at this rate is slow, and not overdue."""
MOST_DOCUMENT_SECONDS: Final = 30.0


@dataclass(frozen=True, kw_only=True)
class PullSettings:
    """How a child pulls; times in seconds."""

    in_flight: int = 2
    """Requests on their way; one would leave the link idle for a round trip per request."""
    poll: float = 1.0
    """How long the parent holds a request for bytes that it does not have yet."""
    silence: float = 5.0
    """A parent that owes bytes or an answer and sends nothing for so long is given up."""
    overdue_floor: float = 1.0
    """A request that the parent can deliver has at least so long, however fast the ones before it were."""
    nice: int = 0
    """Niceness of the thread that pulls."""

    def __post_init__(self) -> None:
        if not 2 <= self.in_flight <= 64:
            raise ValueError(f"in_flight is {self.in_flight}; allowed are 2 to 64")
        if not 0 <= self.poll <= frames.MAX_WAIT_MS / 1000:
            raise ValueError(f"poll is {self.poll}; allowed are 0 to {frames.MAX_WAIT_MS // 1000} seconds")
        if self.silence <= 0 or self.overdue_floor <= 0:
            raise ValueError("silence and overdue_floor must be above 0 seconds")


class TcpTransport(Transport):
    name = "tcp"

    def __init__(self, settings: PullSettings | None = None, credentials: CredentialSource | None = None) -> None:
        """Without `credentials` connections are plain: neither encrypted nor authenticated."""
        self._settings = settings or PullSettings()
        self._tls = TlsContexts(credentials, server=False) if credentials is not None else None

    def probe(self, peer: Peer) -> str:
        if self._tls is None:
            return f"{peer.address}, plain"
        return f"{peer.address}, TLS 1.3 with {agent_uri(peer.node)}"

    def connect(self, peer: Peer, arena: str, child: str, deadline: float) -> Pull:
        channel, meta = self.introduce(peer, frames.MetaRequest(arena=arena, child=child), deadline)
        return TcpPull(channel, meta, self._settings)

    def introduce(self, peer: Peer, request: frames.MetaRequest, deadline: float) -> tuple[Channel, ArenaMeta]:
        """Everything before the first byte; raises what `connect` raises."""
        end = time.monotonic() + deadline

        def left() -> float:
            seconds = end - time.monotonic()
            if seconds <= 0:
                raise DeadlineExceeded(
                    f"parent {peer.node} ({peer.address}): no metadata of {request.arena} in {deadline} s"
                )
            return seconds

        context = self._tls.present() if self._tls is not None else None
        channel = _dial(peer, left())
        try:
            if context is not None:
                channel.start_tls(context, agent_uri(peer.node), left())
            return channel, _read_meta(channel, request, left)
        except BaseException:  # whatever it was: nobody else will close it
            channel.close()
            raise


def _dial(peer: Peer, seconds: float) -> Channel:
    label = f"parent {peer.node} ({peer.address})"
    try:
        sock = socket.create_connection(address.split(peer.address), timeout=seconds)
    except TimeoutError:
        raise ParentUnreachable(f"{label}: no connection within {seconds:.1f} s") from None
    except (OSError, ValueError) as error:
        raise ParentUnreachable(f"{label}: no connection: {error}") from error
    return Channel(sock.detach(), label)


def _read_meta(channel: Channel, request: frames.MetaRequest, left: Callable[[], float]) -> ArenaMeta:
    arena = request.arena
    what = f"asking for the metadata of {arena}"
    channel.send(frames.encode(request), silence=left(), whole=left(), what=what)
    reply = channel.recv_frame(left(), what)
    if reply is None:
        raise ParentUnreachable(f"{channel.peer}: ended the connection, {what}")
    if isinstance(reply, frames.Trouble):
        raise told(channel, reply.problem, what)
    if not isinstance(reply, frames.MetaReply):
        raise TornFrame(f"{channel.peer}: answered {type(reply).__name__} to a request for metadata")
    if reply.digest_chunk_bytes != DIGEST_CHUNK_BYTES:
        raise TornFrame(f"{channel.peer}: digests {reply.digest_chunk_bytes} bytes at a time, we {DIGEST_CHUNK_BYTES}")
    seconds = left() + _seconds_for(reply.digests_bytes + reply.layout_bytes)
    table = channel.recv_tail(reply.digests_bytes, seconds, what)
    layout = channel.recv_tail(reply.layout_bytes, seconds, what)
    if root_digest(table) != reply.digest:
        raise TornFrame(
            f"{channel.peer}: the digest table of {arena} has root {root_digest(table)}, not {reply.digest}"
        )
    meta = ArenaMeta(
        arena=arena,
        identity=reply.identity,
        nbytes=reply.nbytes,
        layout=layout,
        chunk_digests=table,
        digest=reply.digest,
        version=reply.version,
    )
    if meta.layout_digest != reply.layout_digest:
        raise TornFrame(f"{channel.peer}: the layout document of {arena} differs from its digest {reply.layout_digest}")
    return meta


def _seconds_for(documents: int) -> float:
    """What documents of this many bytes may take beyond the deadline for a first word; those of large arenas have
    megabytes, and each lane fetches them over a link that is busy with the others."""
    return min(documents / SLOWEST, MOST_DOCUMENT_SECONDS)


def told(channel: Channel, problem: Problem, what: str) -> FlashBootError:
    """What a parent's trouble stands for, with its name in the message.

    Never a trouble of this node, whatever it says: over such a one no other parent would be asked (node/lane.py)."""
    said = f"{channel.peer}, {what}: {problem.message}"[:4096]
    error = from_problem(problem.model_copy(update={"message": said}))
    ours = isinstance(error, InsufficientMemory | CommitRefused) or type(error) is FlashBootError
    return ParentUnreachable(f"{said} ({problem.reason})") if ours else error


class TcpPull(Pull):
    """See transport/base.py for what callers may expect."""

    def __init__(self, channel: Channel, meta: ArenaMeta, settings: PullSettings) -> None:
        self.meta = meta
        self._channel = channel
        self._settings = settings
        self._puller: LanePuller | None = None

    def close(self) -> None:
        self._channel.close()
        self._puller = None  # it keeps hold of the child's memory

    def advance(self, sink: Sink, seconds: float) -> Progress:
        puller = self._puller = self._puller or self._begin(sink)
        try:
            with stream_errors():
                step = puller.advance(seconds)
        except BaseException:  # somewhere inside a frame: nothing that follows could be understood
            self.close()
            raise
        finally:
            del puller  # an exception keeps this frame, and must not keep the child's memory with it
        what = f"pulling lane {sink.lane} of {self.meta.arena}"
        if step.state == "trouble":
            raise told(self._channel, _problem(self._channel, step.trouble), what)
        if step.state == "overdue":
            raise DeadlineExceeded(
                f"{self._channel.peer}: has bytes up to {step.parent_end} and does not send those from "
                f"{sink.marks.received(sink.lane)} in time, {what}"
            )
        return Progress(step.state, step.offset, step.parent_end, step.starved, step.bytes_in, step.silent_seconds)

    def _begin(self, sink: Sink) -> LanePuller:
        sink.require(self.meta)
        settings = self._settings
        return LanePuller(
            self._channel.stream,
            sink.marks,
            sink.lane,
            sink.memory,
            sink.digests,
            request_bytes=sink.request_bytes,
            in_flight=settings.in_flight,
            poll=settings.poll,
            silence=settings.silence,
            overdue_floor=max(settings.overdue_floor, sink.request_bytes / SLOWEST) * sink.patience,
            nice=settings.nice,
        )


def _problem(channel: Channel, body: bytes) -> Problem:
    try:
        return Problem.model_validate_json(body)
    except ValueError as error:
        raise TornFrame(f"{channel.peer}: its trouble can't be read: {error}"[:4096]) from None
