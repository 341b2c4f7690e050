"""The receiver's side: from the version that somebody has, delta by delta, to the one that is wanted.

    receiver.follow(target)      while a delta comes, what is here of it is applied: max(download, apply)
    receiver.fetch(target)       the deltas are here, whole and verified, and nothing is written: the engine serves on
    receiver.follow(target, …)   applies them at the speed of memory: what a pause has to enclose

Holds always: the chain document is believed only after its signature, and of a delta each part only when it is what the
chain says it is; what is applied changes all of a version's bytes or none. What was received is kept only to go on with
it; nothing of a delta is left that was applied, or is wrong, or is on no way that is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol

from flashboot_agent.core.errors import DeltaBaseMismatch, DeltaDamaged, FlashBootError, Retryable
from flashboot_agent.delta.file import Delta
from flashboot_agent.sync import chain_file
from flashboot_agent.sync.chain import Chain, Step, way
from flashboot_agent.sync.origin import Origin, Progress
from flashboot_agent.sync.spool import PART, part_name

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

TURNS: Final = 5
"""How often a way may vanish under a receiver, because the publisher keeps less than it needs."""


class Versioned(Protocol):
    """What has a version. `str()` names it in messages."""

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


class Target(Versioned, Protocol):
    """What can become the next version."""

    def apply(self, delta: Delta) -> None:
        """It has the delta's new version and digest afterwards, or is as before. The delta may be coming still."""


class Receiver:
    def __init__(
        self,
        origin: Origin,
        spool: Path,
        trusted: Sequence[Ed25519PublicKey] | None,
        progress: Progress = lambda step, nbytes: None,
    ) -> None:
        """`spool`: a folder of this receiver's own, with room for the largest delta (for `fetch`: for all on a way).
        `trusted`: keys of which one must have signed; None takes what is not signed, and only that.

        Raises OSError."""
        self._origin, self._spool, self._trusted, self._progress = origin, spool, trusted, progress
        spool.mkdir(mode=0o700, parents=True, exist_ok=True)

    def chain(self) -> Chain:
        """As it is now. Raises NotReady, DeltaUnreachable, DeltaDamaged, DeltaUntrusted, DeadlineExceeded, OSError."""
        return chain_file.from_bytes(self._origin.chain(), self._trusted, f"{self._origin}/{chain_file.NAME}")

    def follow(self, target: Target, wanted: int | None = None, *, chain: Chain | None = None) -> list[Step]:
        """Bring it to the wanted version (default: the one that is the newest now). Which steps that took.

        `chain`: what `fetch` returned; nothing is asked of the origin then as long as all goes well.
        On an error, too, the target is a version: the one that its own `version` says.
        Raises as `chain` and `way`, DiskFull, and what the target raises."""
        taken: list[Step] = []

        def take(chain: Chain, step: Step) -> None:
            with self.opened(chain, step) as delta:
                target.apply(delta)
            taken.append(step)

        self._go(target, wanted, chain or self.chain(), take)
        return taken

    def fetch(self, target: Target, wanted: int | None = None) -> Chain:
        """Have all deltas here that `follow` will apply; nothing is written to the target. The chain, for `follow`.

        Raises as `chain` and `way`, DiskFull."""

        def take(chain: Chain, step: Step) -> None:
            with self.opened(chain, step, keep=True) as delta:
                delta.require_whole()

        return self._go(target, wanted, self.chain(), take)

    def _go(self, target: Target, wanted: int | None, chain: Chain, take: Callable[[Chain, Step], None]) -> Chain:
        wanted = chain.version if wanted is None else wanted
        for turn in range(TURNS):
            steps = self.way(chain, target, wanted)
            try:
                for step in steps:
                    take(chain, step)
                return chain
            except Retryable as error:
                chain = self._chain_without(step, turn, error)
        raise AssertionError("the last turn returns or raises")

    def way(self, chain: Chain, target: Versioned, wanted: int) -> list[Step]:
        """What is to be taken; what is in the spool folder of other ways is removed.

        Raises as chain.way, DeltaBaseMismatch, OSError."""
        self._require_same(chain, target)
        steps = way(chain, target.version, target.digest, wanted, str(self._origin))
        useful = {part_name(step) for step in steps}
        for left in self._spool.glob(f"*-*.delta.*{PART}"):
            if left.name not in useful:
                left.unlink(missing_ok=True)
        return steps

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
    def opened(self, chain: Chain, step: Step, *, keep: bool = False) -> Iterator[Delta]:
        """A delta of the chain, maybe still coming. `keep`: leave its file for the next call. Raises as the origin."""
        with self._origin.delta(step, self._spool, self._trusted, keep=keep, progress=self._progress) as delta:
            metadata, contents = delta.contents.metadata, delta.contents
            told = Step(
                base_version=metadata.base_version,
                new_version=metadata.new_version,
                base_digest=metadata.base_digest,
                result_digest=metadata.result_digest,
                nbytes=delta.header.file_bytes,
                front_digest=delta.front_digest,
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

    def _require_same(self, chain: Chain, target: Versioned) -> None:
        if (chain.subject, chain.content, chain.image_bytes) != (target.subject, target.content, target.nbytes):
            raise DeltaBaseMismatch(
                f"{self._origin} has versions of {chain.subject} {chain.content} ({chain.image_bytes} bytes); {target} "
                f"is {target.subject} {target.content} ({target.nbytes} bytes)"
            )
