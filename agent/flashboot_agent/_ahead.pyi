"""Attaching to an arena of plain tensors, for an engine that still imports torch (csrc/ahead_module.cpp).

Used by one thread until its tensors are made, then by whoever takes them; `tell` and `stop` may come from any. A small
module of its own, because it is imported while an engine waits.
"""

from typing import Any

class Ahead:
    """`identity`: the process's own, as canonical JSON (wire/layout_head.py)."""

    def __init__(self, identity: bytes) -> None: ...
    def ask(self, path: str, hello: bytes, seconds: float) -> bool:
        """Connect, say hello, and wait for one answer. True: the arena is sealed and taken, and the connection stays.
        False: anything else; no error is raised, `answer` has what came, and Python is to go on from there."""
    def answer(self) -> tuple[int, bytes, list[int]] | None:
        """Connection, packet and its descriptors, all the caller's now. None: the agent was not reached, or it said
        nothing that is a packet of this protocol in time; nothing is open."""
    def take(self, arena: str, nbytes: int, digest: str, descriptor: int, document: bytes) -> bool:
        """The same for an arena whose offer was read and whose document was compared with its digest. The descriptor
        stays the caller's. False: the document is none of plain tensors of this identity, or not sound, or the arena
        is smaller than it must be."""
    @property
    def arena(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def digest(self) -> str: ...
    def make(self, cpu: str, python: str) -> bool:
        """Wait until the process has loaded torch's libraries (libtorch_cpu.so, libtorch_python.so), then make what was
        taken. False: `stop` was called. Raises RuntimeError when this torch lacks a function (from 2.11 on it has all
        of them)."""
    def fill(self, into: dict[str, Any]) -> bool:
        """Every tensor under each of its names, into an empty dictionary; a tie is one object. Once torch is imported.
        False, and the dictionary is empty: there is nothing made, or two places read the same as names."""
    def document(self) -> bytes:
        """The layout of what was taken; empty after `fill`."""
    def descriptor(self) -> int:
        """The arena's, the caller's from now on."""
    def tell(self, message: bytes) -> bool:
        """Say it without waiting. False: there is no connection, or it ended."""
    def fileno(self) -> int:
        """Of the connection, to wait on; it is readable when the agent says something, or the connection ended."""
    def connection(self) -> int:
        """The caller's from now on; -1: there is none."""
    def stop(self) -> None:
        """End each wait, and the connection. Idempotent."""
