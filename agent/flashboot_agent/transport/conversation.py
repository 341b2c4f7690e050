"""One child of a TCP server: who it is, what it learns, and then its bytes, which `_native` carries.

What always holds: with TLS a child is the node that its certificate names; bytes that are not verified never leave;
the lease ends with the conversation, which no child can draw out beyond the deadlines of ServerSettings.
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass

from flashboot_agent._native import MarksClosed, Served, serve
from flashboot_agent.core.chunks import DIGEST_CHUNK_BYTES
from flashboot_agent.core.errors import (
    BadRequest,
    DeadlineExceeded,
    FlashBootError,
    ParentUnreachable,
    PeerRefused,
    UnknownArena,
)
from flashboot_agent.transport.base import ArenaCatalog, ArenaMeta, SourceArena
from flashboot_agent.transport.channel import Channel, stream_errors
from flashboot_agent.transport.nixl_agent import why_not_nixl
from flashboot_agent.transport.nixl_parent import serve_over_nixl
from flashboot_agent.transport.tls import TlsContexts
from flashboot_agent.wire import frames
from flashboot_agent.wire.trust import agent_uri

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """What a server grants its children; times in seconds."""

    connections: int = 64
    """At a time, one for each lane of each child. One above gets NotReady, and tries another parent."""
    per_address: int = 32
    """Of them from one IP address, so that one peer can't take all."""
    hello: float = 10.0
    """From the connection to the end of the request for metadata, the TLS handshake included."""
    idle: float = 60.0
    """Between two requests."""
    silence: float = 10.0
    """A child that takes no byte of a reply for so long is given up."""
    reply: float = 60.0
    """A child must have taken a whole reply (up to 4 MiB; metadata up to 192 MiB) after so long."""
    nice: int = 0
    """Niceness of the threads that serve."""
    nixl: bool = False
    """Serve children over NIXL too (transport/nixl.py says what that asks of the network)."""


class Conversation:
    """`run` it in a thread of its own; whoever made the channel closes it."""

    def __init__(
        self, channel: Channel, catalog: ArenaCatalog, settings: ServerSettings, tls: TlsContexts | None
    ) -> None:
        self._channel = channel
        self._catalog = catalog
        self._settings = settings
        self._tls = tls

    def run(self) -> None:
        """Until the child ends it, or is given up."""
        try:
            self._converse()
        except (ParentUnreachable, DeadlineExceeded) as error:
            log.info("gave up a child: %s", error)
        except FlashBootError as error:
            log.info("refused a child: %s: %s", self._channel.peer, error)
            if self._tls is None or self._channel.stream.tls is not None:  # else it would not understand a frame
                self._tell(error)

    def _converse(self) -> None:
        request = self._introduced()
        if request is None:
            return
        over_nixl = request.carrier == "nixl"
        if over_nixl:
            self._check_nixl()
        source = self._catalog.open(request.arena, request.child)
        try:
            self._send_meta(source.meta)
            if over_nixl:
                serve_over_nixl(self._channel, source, idle=self._settings.idle, silence=self._settings.silence)
            else:
                self._serve_bytes(source)
        finally:
            source.close()

    def _check_nixl(self) -> None:
        if not self._settings.nixl:
            raise BadRequest("this node is not configured to serve over NIXL")
        try:
            why_not_nixl()
        except ParentUnreachable as error:
            raise BadRequest(str(error)) from None

    def _introduced(self) -> frames.MetaRequest | None:
        """What it wants, once it is known who it is; None when it left."""
        channel, hello = self._channel, self._settings.hello
        deadline = time.monotonic() + hello
        if self._tls is not None:
            channel.start_tls(self._tls.present(), None, hello)
        request = channel.recv_frame(max(0.0, deadline - time.monotonic()), "waiting for its request for metadata")
        if request is None:
            return None
        if not isinstance(request, frames.MetaRequest):
            raise BadRequest(f"the first frame must be MetaRequest, not {type(request).__name__}")
        if self._tls is not None and agent_uri(request.child) not in channel.stream.peer_uris:
            raise PeerRefused(f"it asks as node {request.child}, and its certificate is for {channel.stream.peer_uris}")
        channel.peer = f"{channel.peer} on node {request.child}"
        return request

    def _send_meta(self, meta: ArenaMeta) -> None:
        reply = frames.MetaReply(
            identity=meta.identity,
            nbytes=meta.nbytes,
            digest=meta.digest,
            digest_chunk_bytes=DIGEST_CHUNK_BYTES,
            digests_bytes=len(meta.chunk_digests),
            layout_bytes=len(meta.layout),
            layout_digest=meta.layout_digest,
            version=meta.version,
        )
        self._send(frames.encode(reply), meta.chunk_digests)
        if meta.layout:
            self._send(meta.layout)

    def _serve_bytes(self, source: SourceArena) -> None:
        channel, settings, served = self._channel, self._settings, Served()
        try:
            with source.memory as memory, stream_errors():
                serve(
                    channel.stream,
                    source.marks,
                    memory,
                    served,
                    source.buckets,
                    idle=settings.idle,
                    silence=settings.silence,
                    reply=settings.reply,
                    nice=settings.nice,
                )
        except MarksClosed:
            raise UnknownArena(f"{source.meta.arena} was dropped here") from None
        finally:
            log.info("%s took %d bytes of %s", channel.peer, served.bytes_out, source.meta.arena)

    def _tell(self, error: FlashBootError) -> None:
        with contextlib.suppress(ParentUnreachable, DeadlineExceeded):
            self._send(frames.encode(frames.Trouble(error.problem())))
            self._channel.finish(2.0)

    def _send(self, head: bytes, tail: bytes = b"") -> None:
        settings = self._settings
        self._channel.send(head, tail, silence=settings.silence, whole=settings.reply, what="sending a reply")
