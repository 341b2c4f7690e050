"""The chain: which versions are published, and by which deltas one becomes another. Pure.

Holds always (or the document is none): each step goes to a higher version, none beyond the newest one, and all steps
agree on the digest of each version. Where to get a step from is derived from its versions, never read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final, Literal, Self

from pydantic import FailFast, Field, model_validator

from flashboot_agent.core.chunks import chunk_count
from flashboot_agent.core.errors import BadRequest, DeltaBaseMismatch, NotReady
from flashboot_agent.delta.document import HEADER, MAX_IMAGE, MAX_METADATA, MAX_RUN_BYTES, ROW
from flashboot_agent.delta.spans import DIGEST, span_count
from flashboot_agent.delta.trailer import TRAILER
from flashboot_agent.wire.base import Digest, WireModel

MAX_STEPS: Final = 1 << 16

Version = Annotated[int, Field(ge=0, lt=1 << 63)]


class Step(WireModel):
    """A published delta."""

    base_version: Version
    new_version: Version
    base_digest: Digest
    result_digest: Digest
    nbytes: int = Field(gt=0)
    """Of the file."""
    front_digest: Digest
    """Of all that is before its bodies (Delta.front_digest), which names digests of these: so whoever believes the
    chain can believe each part of the file as it comes."""

    @property
    def file(self) -> str:
        return file_name(self.base_version, self.new_version)


def file_name(base: int, new: int) -> str:
    return f"{base}-{new}.delta"


class Chain(WireModel):
    schema_version: Literal[1] = 1
    subject: Literal["arena", "checkpoint"]
    content: Digest
    """Of what all versions have in common, as in each delta."""
    image_bytes: int = Field(gt=0, le=MAX_IMAGE)
    version: Version
    """The newest one."""
    digest: Digest
    steps: Annotated[tuple[Step, ...], FailFast()] = Field(default=(), max_length=MAX_STEPS)

    @model_validator(mode="after")
    def _sound(self) -> Self:
        digests, seen = {self.version: self.digest}, set[str]()
        for step in self.steps:
            if not step.base_version < step.new_version <= self.version or step.file in seen:
                raise ValueError(f"{step.file} is no step of a chain to version {self.version}")
            seen.add(step.file)
            if step.nbytes > longest(self.image_bytes):
                raise ValueError(f"{step.file} has {step.nbytes} bytes: no delta of {self.image_bytes} bytes has")
            for version, digest in _ends(step):
                if digests.setdefault(version, digest) != digest:
                    raise ValueError(f"version {version} has two digests: {digests[version]} and {digest}")
        return self

    def digests(self) -> dict[int, str]:
        """Of all versions that a delta begins or ends with."""
        return dict([(self.version, self.digest), *(end for step in self.steps for end in _ends(step))])

    def plus(self, step: Step) -> Chain:
        """With one more: the next version, or another way between two that are there. Raises ValueError."""
        newest = step.new_version > self.version
        version, digest = (step.new_version, step.result_digest) if newest else (self.version, self.digest)
        return self._changed(version=version, digest=digest, steps=(*self.steps, step))

    def kept(self, retention: Retention) -> Chain:
        """Without the steps that are to go; the newest one always stays."""
        newest_first = sorted(self.steps, key=lambda step: (-step.new_version, -step.base_version))
        kept: list[Step] = []
        total = 0
        for step in newest_first[: retention.deltas]:
            total += step.nbytes
            if kept and retention.nbytes is not None and total > retention.nbytes:
                break
            kept.append(step)
        return self._changed(steps=tuple(reversed(kept)))

    def _changed(self, **fields: object) -> Chain:
        """Validated anew, which model_copy is not."""
        return Chain.model_validate({**{name: getattr(self, name) for name in Chain.model_fields}, **fields})


def longest(image_bytes: int) -> int:
    """Bytes of a delta at most: what its format allows, all chunks raw."""
    table = ROW * chunk_count(image_bytes) + DIGEST * span_count(image_bytes)
    return HEADER.size + MAX_METADATA + MAX_RUN_BYTES + table + image_bytes + TRAILER.size


def _ends(step: Step) -> tuple[tuple[int, str], tuple[int, str]]:
    return (step.base_version, step.base_digest), (step.new_version, step.result_digest)


@dataclass(frozen=True)
class Retention:
    """What a publisher keeps: the newest deltas, so many, of so many bytes together."""

    deltas: int = 64
    nbytes: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.deltas <= MAX_STEPS:
            raise BadRequest(f"a chain keeps 1 to {MAX_STEPS} deltas, not {self.deltas}")


def way(chain: Chain, version: int, digest: str, wanted: int | None, name: str) -> list[Step]:
    """The steps of the fewest bytes from a version that somebody has to the wanted one (default: the newest).

    Raises NotReady when that is not published yet, DeltaBaseMismatch when no steps lead from one to the other, or the
    version there has other bytes, BadRequest for a way back. `name`: the chain's, for messages."""
    target = chain.version if wanted is None else wanted
    _require_same(chain, version, digest, name)
    if target > chain.version:
        raise NotReady(f"{name}: version {target} is not published yet, the newest is {chain.version}")
    if target < version:
        raise BadRequest(f"{name} leads forward only: from {version} to {target} go by reverse deltas, or by a copy")
    cost = {version: (0, 0)}
    last: dict[int, Step] = {}
    for step in sorted(chain.steps, key=lambda step: step.base_version):  # all ways to its base are known by then
        if (here := cost.get(step.base_version)) is None:
            continue
        there = (here[0] + step.nbytes, here[1] + 1)
        if step.new_version not in cost or there < cost[step.new_version]:
            cost[step.new_version], last[step.new_version] = there, step
    if target not in cost:
        bases = {step.base_version for step in chain.steps}
        raise DeltaBaseMismatch(
            f"{name} has no deltas that lead from version {version} to {target}: its deltas begin at versions "
            f"{few(bases)}; copy the weights of one of these, or of {chain.version}, first"
        )
    found: list[Step] = []
    while target != version:
        found.append(last[target])
        target = last[target].base_version
    return found[::-1]


def _require_same(chain: Chain, version: int, digest: str, name: str) -> None:
    digests = chain.digests()
    published = digests.get(version)
    if published is not None and published != digest:
        other = next((each for each, its in digests.items() if its == digest), None)
        hint = "they are of no version in it" if other is None else f"they are those of version {other}"
        raise DeltaBaseMismatch(f"{name}: version {version} is {published} there, these bytes are {digest}: {hint}")


def few(versions: Iterable[int]) -> str:
    """The newest of them, for messages."""
    newest = sorted(versions, reverse=True)
    shown = ", ".join(map(str, newest[:8])) or "none"
    return f"{shown} and {len(newest) - 8} older" if len(newest) > 8 else shown
