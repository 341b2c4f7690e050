"""Any sound layout of a few tensors, for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from flashboot_agent._native import LAYOUT_DTYPES
from flashboot_agent.wire.layout import ALIGNMENT, Layout, Scalar
from flashboot_agent.wire.layout_entries import BINDING_KINDS, STORAGE_KINDS, Binding, Segment, Storage, TensorView
from tests.layouts import PARAMETER

words = st.text(st.characters(exclude_characters=".", exclude_categories=["Cs"]), min_size=1, max_size=6)
paths = st.lists(words, max_size=3).map(".".join)
scalars: st.SearchStrategy[Scalar] = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
) | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
attributes = st.dictionaries(words, scalars, max_size=2)
sizes = st.lists(st.integers(0, 4), max_size=3)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Any sound layout of a few tensors."""
    storages: list[Storage] = []
    tensors: list[TensorView] = []
    bindings, segments, end, begin = [], [], 0, 0
    places = draw(st.lists(st.tuples(paths, words), min_size=1, max_size=8, unique=True))
    for module, attribute in places:
        tied = draw(st.integers(-2, len(tensors) - 1))
        if tied < 0:
            view = draw(_views(len(storages)))
            if not storages or draw(st.booleans()):
                if end > begin and draw(st.booleans()):  # a segment ends here
                    end = -(-end // 4096) * 4096
                    segments.append(Segment(begin, end - begin))
                    begin = end
                offset = -(-end // ALIGNMENT) * ALIGNMENT + draw(st.sampled_from([0, 0, ALIGNMENT]))
                storages.append(
                    Storage(offset, _bytes(view) + draw(st.integers(0, 3)), draw(st.sampled_from(STORAGE_KINDS)))
                )
                end = offset + storages[-1].bytes
            elif _bytes(view) > storages[-1].bytes:
                view = tensors[-1]
            tensors.append(view._replace(storage=len(storages) - 1))
        tensor = tied if tied >= 0 else len(tensors) - 1
        kinds = BINDING_KINDS if tensors[tensor].parameter else BINDING_KINDS[1:]
        bindings.append(Binding(module, attribute, draw(st.sampled_from(kinds)), tensor))
    segments.append(Segment(begin, max(4096, -(-end // 4096) * 4096 - begin)))
    return Layout(
        identity=draw(st.dictionaries(words, words, max_size=3)),
        arena_bytes=segments[-1].offset + segments[-1].bytes,
        segments=segments,
        storages=storages,
        tensors=tensors,
        bindings=bindings,
        scalars={key: value for key, value in draw(st.dictionaries(paths, attributes, max_size=3)).items() if value},
        deleted=draw(
            st.dictionaries(paths, st.lists(words, min_size=1, max_size=2, unique=True).map(sorted), max_size=2)
        ),
        structure=draw(st.none() | words),
    )


@st.composite
def _views(draw: st.DrawFn, storage: int) -> TensorView:
    shape = tuple(draw(sizes))
    stride = tuple(draw(st.integers(0, 5)) for _ in shape)
    dtype = draw(st.sampled_from(list(LAYOUT_DTYPES)))
    cls, offset = draw(st.sampled_from([PARAMETER, "torch.Tensor"])), draw(st.integers(0, 3))
    return TensorView(storage, offset, shape, stride, dtype, draw(st.booleans()), cls, draw(attributes))


def _bytes(view: TensorView) -> int:
    """What its storage must have."""
    reach = 0 if 0 in view.shape else 1 + sum((n - 1) * step for n, step in zip(view.shape, view.stride, strict=True))
    return (view.offset + reach) * LAYOUT_DTYPES[view.dtype]
