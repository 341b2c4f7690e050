"""The receiver's side: from the version that somebody has, delta by delta, to the one that is wanted.

Holds always: the chain document and each delta are believed only after their signatures; a delta is applied only if it
is what the chain says it is; what is applied changes all of a version's bytes or none. A file that was fetched is gone
when its delta is applied, or when anything goes wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol

from flashboot_agent.core.errors import DeltaBaseMismatch, DeltaDamaged, FlashBootError, Retryable
from flashboot_agent.delta.file import Delta, open_delta
from flashboot_agent.sync import chain_file
from flashboot_agent.sync.chain import Chain, Step, way
from flashboot_agent.sync.origin import PART, Origin

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

TURNS: Final = 5
"""How often a way may vanish under a receiver, because the publisher keeps less than it needs."""


class Target(Protocol):
    """What has a version and can become the next one. `str()` names it in messages."""

    @property
    def subject(self) -> Literal["arena", "checkpoint"]: ...
    @property
    def content(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def digest(self) -> str: ...

    def apply(self, delta: Delta) -> None:
        """It has the delta's new version and digest afterwards, or is as before."""


class Receiver:
    def __init__(self, origin: Origin, spool: Path, trusted: Sequence[Ed25519PublicKey] | None) -> None:
        """`spool`: a folder of this receiver's own, with room for the largest delta; what a crash left there is
        removed. `trusted`: keys of which one must have signed; None takes what is not signed, and only that.

        Raises OSError."""
        self._origin, self._spool, self._trusted = origin, spool, trusted
        spool.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in spool.glob(f"*{PART}"):
            left.unlink()

    def chain(self) -> Chain:
        """As it is now. Raises NotReady, DeltaUnreachable, DeltaDamaged, DeltaUntrusted, DeadlineExceeded, OSError."""
        return chain_file.from_bytes(self._origin.chain(), self._trusted, f"{self._origin}/{chain_file.NAME}")

    def follow(self, target: Target, wanted: int | None = None) -> list[Step]:
        """Bring it to the wanted version (default: the one that is the newest now). Which steps that took.

        On an error, too, the target is a version: the one that its own `version` says.
        Raises as `chain` and `way`, DiskFull, and what the target raises."""
        chain, taken = self.chain(), list[Step]()
        wanted = chain.version if wanted is None else wanted
        for turn in range(TURNS):
            self._require_same(chain, target)
            steps = way(chain, target.version, target.digest, wanted, str(self._origin))
            try:
                for step in steps:
                    with self._opened(chain, step) as delta:
                        target.apply(delta)
                    taken.append(step)
                return taken
            except Retryable as error:
                chain = self._chain_without(step, turn, error)
        raise AssertionError("the last turn returns or raises")

    def _chain_without(self, step: Step, turn: int, error: FlashBootError) -> Chain:
        """The chain as it is now, if it is for its retention that the step failed. Raises the error if not."""
        try:
            chain = self.chain()
        except (FlashBootError, OSError):
            raise error from None  # what went wrong first says more
        if step in chain.steps or turn == TURNS - 1:
            raise error
        return chain

    @contextmanager
    def _opened(self, chain: Chain, step: Step) -> Iterator[Delta]:
        with self._origin.delta(step, self._spool) as path, open_delta(path, self._trusted) as delta:
            metadata, contents = delta.contents.metadata, delta.contents
            told = Step(
                base_version=metadata.base_version,
                new_version=metadata.new_version,
                base_digest=metadata.base_digest,
                result_digest=metadata.result_digest,
                nbytes=step.nbytes,
            )
            same = (metadata.subject, metadata.content, contents.nbytes) == (
                chain.subject,
                chain.content,
                chain.image_bytes,
            )
            if told != step or not same:
                raise DeltaDamaged(
                    f"{self._origin}/{step.file} is another delta than the chain names ({metadata.versions()}, "
                    f"{metadata.subject} {metadata.content}, {metadata.base_digest} → {metadata.result_digest})"
                )
            yield delta

    def _require_same(self, chain: Chain, target: Target) -> None:
        if (chain.subject, chain.content, chain.image_bytes) != (target.subject, target.content, target.nbytes):
            raise DeltaBaseMismatch(
                f"{self._origin} has versions of {chain.subject} {chain.content} ({chain.image_bytes} bytes); {target} "
                f"is {target.subject} {target.content} ({target.nbytes} bytes)"
            )
