"""Damage to bytes, for property tests of readers of untrusted files."""

from __future__ import annotations

from hypothesis import strategies as st

Change = tuple[str, float, bytes]
changes = st.lists(
    st.tuples(st.sampled_from(["set", "cut", "insert", "end"]), st.floats(0, 1), st.binary(min_size=1, max_size=9)),
    min_size=1,
    max_size=4,
)


def mutated(original: bytes, how: list[Change]) -> bytes:
    """Some bytes set, cut or inserted, each somewhere between begin and end."""
    content = bytearray(original)
    for change, where, some in how:
        at = int(where * len(content))
        match change:
            case "set":
                content[at : at + len(some)] = some
            case "cut":
                del content[at : at + len(some)]
            case "end":
                del content[at:]
            case _:
                content[at:at] = some
    return bytes(content)
