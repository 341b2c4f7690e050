"""NVIDIA's transfer library NIXL over UCX, as far as both ends need it: one agent, its memory, its metadata.

What always holds: nothing of NIXL is imported before it is wanted, so that nodes without the extra work; when an Agent
is closed its UCX worker is gone, and nobody reads or writes the registered memory through it any more; what NIXL raises
comes out as ParentUnreachable with its own words.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import time
import uuid
from collections.abc import Iterator
from typing import Any, Final

from flashboot_agent.core.errors import DeadlineExceeded, ParentUnreachable

_BACKEND: Final = "UCX"
_TRANSPORTS: Final = "^sm"
"""For UCX_TLS where it is not set: all but those of one host's shared memory. With them a peer writes into a process
whose agent is long gone; and arenas of one node are read in place anyway (transport/map.py)."""
_SPIN_SECONDS: Final = 0.002
"""A transfer is looked at without a pause for so long, then every half millisecond."""


def why_not_nixl() -> None:
    """Raises ParentUnreachable with the reason when this process can't use NIXL; looks at this node only."""
    if importlib.util.find_spec("nixl") is None:
        raise ParentUnreachable("the extra flashboot[nixl] is not installed here")
    wanted = os.environ.get("UCX_TLS", _TRANSPORTS)
    names = set(wanted.removeprefix("^").split(","))
    if ("tcp" in names) if wanted.startswith("^") else not {"all", "tcp"} & names:
        raise ParentUnreachable(f"UCX_TLS is {wanted!r} here and lacks tcp, over which UCX makes its connections")


@contextlib.contextmanager
def _nixl_errors(what: str) -> Iterator[None]:
    """NIXL's exceptions have no base but Exception: they are told by the module that defines them."""
    try:
        yield
    except Exception as error:  # narrowed right below: NIXL gives its exceptions no base of their own
        if not type(error).__name__.startswith("nixl"):
            raise
        raise ParentUnreachable(f"{what}: NIXL: {type(error).__name__}: {error}") from None


def address_of(memory: memoryview) -> int:
    """Of its first byte; keeps no hold of the memory."""
    numpy = importlib.import_module("numpy")  # NIXL needs it, the agent does not
    return int(numpy.frombuffer(memory, numpy.uint8).ctypes.data)


class Agent:
    """Used by one thread."""

    def __init__(self, what: str) -> None:
        """Takes about a second. `what` is how messages call the use of it."""
        why_not_nixl()
        os.environ.setdefault("UCX_TLS", _TRANSPORTS)  # UCX has no other door
        api = importlib.import_module("nixl._api")
        self.name = f"flashboot-{uuid.uuid4().hex}"
        self._what = what
        with _nixl_errors(what):
            self._nixl: Any = api.nixl_agent(self.name, api.nixl_agent_config(backends=[_BACKEND]))
        if _BACKEND not in self._nixl.backends:
            raise ParentUnreachable(f"{what}: this node's NIXL has no {_BACKEND} backend")
        self._regions: list[Any] = []
        self._peer: str | None = None

    def register(self, address: int, nbytes: int) -> None:
        """The memory must stay until `close`."""
        with _nixl_errors(self._what):
            self._regions.append(self._nixl.register_memory([(address, nbytes, 0, "arena")], "DRAM"))

    @property
    def metadata(self) -> bytes:
        """Where this agent is, and keys to what is registered. Whoever has it may write there."""
        with _nixl_errors(self._what):
            return bytes(self._nixl.get_agent_metadata())

    def add_peer(self, name: str, metadata: bytes) -> None:
        """Only for metadata from a peer that has proved who it is. Raises ParentUnreachable when it names another."""
        with _nixl_errors(self._what):
            found = self._nixl.add_remote_agent(metadata)
        if found not in (name, name.encode()):
            raise ParentUnreachable(f"{self._what}: the metadata are of agent {found!r}, not {name}")
        self._peer = name

    def write(self, address: int, to: int, nbytes: int, seconds: float) -> None:
        """Write our bytes at `address` to the peer's address `to`; they are there on return.

        Raises DeadlineExceeded, ParentUnreachable. After either only `close` may follow: the transfer may still run."""
        deadline = time.monotonic() + seconds
        spin = time.monotonic() + _SPIN_SECONDS
        with _nixl_errors(self._what):
            local = self._nixl.get_xfer_descs([(address, nbytes, 0)], "DRAM")
            remote = self._nixl.get_xfer_descs([(to, nbytes, 0)], "DRAM")
            handle = self._nixl.initialize_xfer("WRITE", local, remote, self._peer)
            state = self._nixl.transfer(handle)
            while state == "PROC":
                now = time.monotonic()
                if now >= deadline:  # NIXL itself lets a transfer stay in progress for ever
                    raise DeadlineExceeded(f"{self._what}: {nbytes} bytes were not written in {seconds} s")
                if now >= spin:
                    time.sleep(0.0005)
                state = self._nixl.check_xfer_state(handle)
            if state != "DONE":
                raise ParentUnreachable(f"{self._what}: NIXL gave up writing {nbytes} bytes: {state}")
            self._nixl.release_xfer_handle(handle)

    def close(self) -> None:
        """Idempotent."""
        nixl, self._nixl = self._nixl, None
        if nixl is None:
            return
        with contextlib.suppress(ParentUnreachable), _nixl_errors(self._what):  # the worker goes in any case, below
            if self._peer is not None:
                nixl.remove_remote_agent(self._peer)
            for region in self._regions:
                nixl.deregister_memory(region)
        self._regions.clear()
        del nixl  # the last reference: destroys the agent with its worker and threads
