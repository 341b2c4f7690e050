"""Places against SGLang's own arithmetic of ranks: which pod runs which, and that the place says all of them."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from flashboot_agent.wire.place import Place
from flashboot_operator.core.ranks import places_of_pod


def cuts(tensor: int) -> list[tuple[int, int]]:
    """Pairs of sizes whose product divides the tensor size."""
    numbers = range(1, tensor + 1)
    return [(one, other) for one, other in itertools.product(numbers, numbers) if tensor % (one * other) == 0]


@pytest.mark.parametrize("tensor", [1, 2, 4, 6, 8])
@pytest.mark.parametrize("pipeline", [1, 2, 3])
def test_all_ranks_of_a_process_follow_from_its_place(tensor: int, pipeline: int) -> None:
    """For every way to cut attention (DP, CP) and experts (DP, EP), MoE-DP that follows CP included."""
    from sglang.srt.runtime_context import (
        derive_attention_ranks,
        derive_attn_tp_size,
        derive_spawn_ranks,
    )

    for (attn_dp, attn_cp), (moe_dp, moe_ep) in itertools.product(cuts(tensor), cuts(tensor)):
        attn_tp = derive_attn_tp_size(tp_size=tensor, attn_cp_size=attn_cp, attn_dp_size=attn_dp)
        seen: dict[Place, Any] = {}
        for world_rank in range(tensor * pipeline):
            ranks = derive_spawn_ranks(
                world_rank=world_rank,
                tp_size=tensor,
                ep_join_rank_offset=0,
                attn_cp_size=attn_cp,
                attn_tp_size=attn_tp,
                moe_dp_size=moe_dp,
                moe_ep_size=moe_ep,
            )
            attention = derive_attention_ranks(tp_rank=ranks["tp_rank"], attn_tp_size=attn_tp, attn_cp_size=attn_cp)
            seen[Place(pp=ranks["pp_rank"], tp=ranks["tp_rank"])] = (ranks, attention)
        assert sorted(seen, key=str) == sorted(places_of_pod(tensor=tensor, pipeline=pipeline), key=str)
        assert len({str(ranks) for ranks in seen.values()}) == len(seen)


def test_pods_run_the_ranks_that_sglang_gives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.entrypoints import engine

    tried = 0
    for tensor, pipeline, pods in itertools.product((1, 2, 4, 8, 16), (1, 2, 4), (1, 2, 4, 8)):
        for index in range(pods):
            try:
                ours = places_of_pod(tensor=tensor, pipeline=pipeline, pods=pods, index=index)
            except ValueError:
                continue
            sizes = {"tp_size": tensor, "pp_size": pipeline, "nnodes": pods}
            # Not SGLang's own override: it compares sizes with the groups that another test of this process made.
            monkeypatch.setattr(engine, "get_parallel", lambda sizes=sizes: SimpleNamespace(**sizes))
            stages, ranks, _, _ = engine._calculate_rank_ranges(index)
            assert ours == [Place(pp=pp, tp=tp) for pp in stages for tp in ranks], (sizes, index)
            tried += 1
    assert tried > 80
