"""The chain of published versions: its document, the ways through it, and what is kept of it."""

from __future__ import annotations

import hashlib
from itertools import pairwise

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from flashboot_agent.core.errors import BadRequest, DeltaBaseMismatch, DeltaDamaged, DeltaUntrusted, NotReady
from flashboot_agent.delta import trailer
from flashboot_agent.sync import chain_file
from flashboot_agent.sync.chain import Chain, Retention, Step, way

KEY = Ed25519PrivateKey.generate()


def digest(version: int) -> str:
    return f"xxh3:{version:016x}"


def step(base: int, new: int, nbytes: int = 100) -> Step:
    return Step(
        base_version=base,
        new_version=new,
        base_digest=digest(base),
        result_digest=digest(new),
        nbytes=nbytes,
        front_digest="sha256:" + "f" * 64,
    )


def chain(*steps: Step, version: int | None = None) -> Chain:
    newest = max((each.new_version for each in steps), default=0) if version is None else version
    return Chain(
        subject="arena",
        content="sha256:" + "c" * 64,
        image_bytes=1 << 20,
        version=newest,
        digest=digest(newest),
        steps=steps,
    )


STEPS = st.lists(
    st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(1, 1000)).filter(lambda each: each[0] < each[1]),
    unique_by=lambda each: each[:2],
    min_size=1,
).map(lambda found: [step(*each) for each in found])


def every_way(steps: list[Step], here: int, there: int) -> list[list[Step]]:
    if here == there:
        return [[]]
    begin = [each for each in steps if each.base_version == here]
    return [[each, *rest] for each in begin for rest in every_way(steps, each.new_version, there)]


@given(STEPS, st.integers(0, 7), st.integers(0, 7))
def test_the_way_is_the_one_of_the_fewest_bytes(steps: list[Step], here: int, there: int) -> None:
    published = chain(*steps)
    if not here <= there <= published.version:
        return
    ways = every_way(steps, here, there)
    if not ways:
        with pytest.raises(DeltaBaseMismatch, match=f"lead from version {here} to {there}"):
            way(published, here, digest(here), there, "the chain")
        return
    found = way(published, here, digest(here), there, "the chain")
    assert sum(each.nbytes for each in found) == min(sum(each.nbytes for each in one) for one in ways)
    assert [each.base_version for each in found[:1]] == [here] * bool(found)
    assert all(a.new_version == b.base_version for a, b in pairwise(found))


@given(STEPS, st.integers(1, 10), st.one_of(st.none(), st.integers(1, 3000)))
def test_what_is_kept_is_the_newest_within_both_limits(steps: list[Step], deltas: int, nbytes: int | None) -> None:
    published = chain(*steps)
    kept = published.kept(Retention(deltas, nbytes)).steps
    assert set(kept) <= set(steps)
    assert any(each.new_version == published.version for each in kept)
    assert len(kept) <= deltas
    assert nbytes is None or len(kept) == 1 or sum(each.nbytes for each in kept) <= nbytes
    dropped = set(steps) - set(kept)
    assert all(gone.new_version <= each.new_version for gone in dropped for each in kept)


@given(STEPS, st.booleans())
def test_the_document_comes_back(steps: list[Step], signed: bool) -> None:
    published, key = chain(*steps), KEY if signed else None
    data = chain_file.to_bytes(published, key)
    assert len(data) <= chain_file.MAX_BYTES
    assert chain_file.from_bytes(data, [KEY.public_key()] if signed else None, "chain") == published


def test_each_flipped_bit_of_the_document_is_refused() -> None:
    for key in (None, KEY):
        trusted = [key.public_key()] if key else None
        data = chain_file.to_bytes(chain(step(1, 2)), key)
        for at in range(len(data)):
            for bit in range(8):
                damaged = bytearray(data)
                damaged[at] ^= 1 << bit
                with pytest.raises((DeltaDamaged, DeltaUntrusted), match="there/chain"):
                    chain_file.from_bytes(bytes(damaged), trusted, "there/chain")
        for cut in (b"", data[:-1], data + b"\n", data[: len(data) // 2]):
            with pytest.raises(DeltaDamaged, match="there/chain"):
                chain_file.from_bytes(cut, trusted, "there/chain")


def test_a_signature_of_a_delta_is_none_of_a_chain() -> None:
    text = chain(step(1, 2)).to_json() + b"\n"
    as_delta = text + trailer.make(hashlib.sha256(text), KEY).hex().encode() + b"\n"
    with pytest.raises(DeltaUntrusted, match="not one of key"):
        chain_file.from_bytes(as_delta, [KEY.public_key()], "chain")


@pytest.mark.parametrize(
    ("steps", "version", "says"),
    [
        ([step(2, 1)], 3, "no step"),
        ([step(1, 1)], 3, "no step"),
        ([step(1, 4)], 3, "no step"),
        ([step(1, 2), step(1, 2)], 3, "no step"),
        ([step(1, 2).model_copy(update={"result_digest": digest(9)}), step(2, 3)], 3, "two digests"),
        ([step(1, 3).model_copy(update={"result_digest": digest(9)})], 3, "two digests"),
        ([step(1, 2, 1 << 40)], 3, "no delta of"),
    ],
)
def test_what_is_no_chain_is_refused_though_it_is_signed(steps: list[Step], version: int, says: str) -> None:
    good = chain(version=version)
    forged = good.model_copy(update={"steps": tuple(steps)})
    with pytest.raises(DeltaDamaged, match=says):
        chain_file.from_bytes(chain_file.to_bytes(forged, KEY), [KEY.public_key()], "chain")


def test_of_very_much_that_is_wrong_the_first_is_told() -> None:
    text = chain(step(0, 1)).to_json().replace(b'"steps":[', b'"steps":[' + b"{}," * 50_000) + b"\n"
    forged = text + trailer.make(hashlib.sha256(text), None, b"flashboot chain v1\0").hex().encode() + b"\n"
    with pytest.raises(DeltaDamaged, match=r"name: steps\.0\.baseVersion: Field required") as told:
        chain_file.from_bytes(forged, None, "name")
    assert len(str(told.value)) < 200


def test_versions_that_are_not_on_the_way_are_named() -> None:
    published = chain(step(3, 4), step(4, 6))
    with pytest.raises(NotReady, match="version 7 is not published yet, the newest is 6"):
        way(published, 3, digest(3), 7, "there")
    with pytest.raises(DeltaBaseMismatch, match="lead from version 2 to 6: its deltas begin at versions 4, 3"):
        way(published, 2, digest(2), None, "there")
    with pytest.raises(DeltaBaseMismatch, match="lead from version 4 to 5"):
        way(published, 4, digest(4), 5, "there")
    with pytest.raises(DeltaBaseMismatch, match="they are those of version 4"):
        way(published, 3, digest(4), 6, "there")
    with pytest.raises(DeltaBaseMismatch, match="of no version"):
        way(published, 6, digest(1), 6, "there")
    with pytest.raises(BadRequest, match="forward only"):
        way(published, 6, digest(6), 4, "there")
    assert way(published, 6, digest(6), None, "there") == []
    with pytest.raises(BadRequest, match="keeps 1 to"):
        Retention(0)
