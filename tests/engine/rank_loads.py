"""Every rank of a replica, one after the other in one process: loaded by plain SGLang, as a seed, and attached.

    python -m tests.engine.rank_loads SOCKET CHECKPOINT…

A rank's load needs its numbers and no other rank, so the process groups are stand-ins that know their sizes. Prints a
JSON object: checkpoint's name → cut → rank → {differences, digest of the arena's bytes, identity's ranks, bytes}.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashboot_agent.engine import session
from flashboot_agent.engine.feed import Feed
from flashboot_agent.engine.identity import place_of
from flashboot_agent.engine.mapping import parse_layout
from flashboot_agent.wire.layout import Layout
from tests.engine import peer as peers
from tests.engine import runtime, trios, updates

CUTS: dict[str, dict[str, dict[str, int]]] = {
    "qwen3_moe": {
        "TP 2": {"tp_size": 2},
        "TP 2, EP 2": {"tp_size": 2, "ep_size": 2},
        "TP 4, EP 2": {"tp_size": 4, "ep_size": 2},
        "TP 2, PP 2": {"tp_size": 2, "pp_size": 2},
        "TP 2, attention DP 2": {"tp_size": 2, "attn_dp_size": 2},
        "TP 4, attention CP 2, MoE DP 2": {"tp_size": 4, "attn_cp_size": 2, "moe_dp_size": 2},
    },
    "deepseek_v3": {
        "TP 2": {"tp_size": 2},
        "TP 2, attention DP 2": {"tp_size": 2, "attn_dp_size": 2},
    },
}
"""Name of the checkpoint (runtime.CASES) → name of the cut → SGLang's arguments."""

UPDATED = {"qwen3_moe": ("TP 2", "TP 2, EP 2", "TP 2, PP 2"), "deepseek_v3": ("TP 2",)}
"""Cuts in which an update is made in all ways, too (updates.py)."""


@dataclass
class Group:
    """Stands for a process group of `world_size` ranks, as its member `rank_in_group`."""

    world_size: int
    rank_in_group: int
    cpu_group: None = None

    @property
    def is_first_rank(self) -> bool:
        return self.rank_in_group == 0

    @property
    def is_last_rank(self) -> bool:
        return self.rank_in_group == self.world_size - 1


def publish(folder: Path, socket_path: Path | None, world_rank: int, sizes: dict[str, int]) -> Any:
    from sglang.srt.layers.moe import initialize_moe_config
    from sglang.srt.runtime_context import get_parallel

    get_parallel().clear_stamp()
    config = runtime.publish(folder, socket_path, world_rank=world_rank, **sizes)
    initialize_moe_config()
    parallel = get_parallel()
    widths = {
        "pp": (parallel.pp_size, parallel.pp_rank),
        "tp": (parallel.tp_size, parallel.tp_rank),
        "attn_tp": (parallel.attn_tp_size, parallel.attn_tp_rank),
        "attn_cp": (parallel.attn_cp_size, parallel.attn_cp_rank),
        "moe_ep": (parallel.moe_ep_size, parallel.moe_ep_rank),
        "moe_tp": (parallel.moe_tp_size, parallel.moe_tp_rank),
    }
    parallel.override_permanently(**{f"{name}_group": Group(*width) for name, width in widths.items()})
    return config


def one_rank(
    folder: Path, socket_path: Path, world_rank: int, sizes: dict[str, int], updated: bool
) -> tuple[str, dict[str, Any]]:
    """Its place, and what is to be known about it."""
    from sglang.srt.layers.rotary_embedding.factory import _ROPE_DICT

    peer = peers.Peer(socket_path)
    try:
        _ROPE_DICT.clear()
        _, plain = runtime.load(publish(folder, None, world_rank, sizes))
        _ROPE_DICT.clear()
        config = publish(folder, socket_path, world_rank, sizes)
        settings = session.published_settings()
        assert settings is not None
        place = place_of(config)
        _, seeded = runtime.load(config)
        session.forget(settings)
        _, attached = runtime.load(config)
        session.forget(settings)
        arena = peer.arena(place)
        assert arena.layout is not None
        assert arena.memory is not None
        layout = parse_layout(arena.layout)
        differences = [f"seed: {each}" for each in trios.differences(plain, seeded, layout)]
        differences += [f"attached: {each}" for each in trios.differences(plain, attached, layout)]
        if updated:
            differences += [f"update: {each}" for each in _updated(folder, config, layout, arena)]
        return str(place), {
            "differences": differences,
            "bytes": arena.nbytes,
            "digest": hashlib.sha256(os.pread(arena.memory, arena.nbytes, 0)).hexdigest(),
            "ranks": {name: value for name, value in arena.identity.items() if name.endswith("_rank")},
        }
    finally:
        peer.close()


def _updated(folder: Path, config: Any, layout: Layout, arena: peers.Arena) -> Iterator[str]:
    from sglang.srt.configs.device_config import DeviceConfig
    from sglang.srt.configs.load_config import LoadConfig

    assert arena.memory is not None
    feed = Feed(config, DeviceConfig("cpu", 0), LoadConfig(), arena.identity)
    return updates.differences(layout, os.pread(arena.memory, arena.nbytes, 0), folder, feed)


def main(socket_path: Path, folders: list[Path]) -> None:
    import sglang.srt.managers.scheduler  # noqa: F401

    from flashboot_agent.engine import plugin

    plugin.install(plugin.scheduler_hooks())
    runtime._started.append(True)
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for folder in folders:
        cuts = found[folder.name] = {}
        for cut, sizes in CUTS[folder.name].items():
            world = sizes.get("tp_size", 1) * sizes.get("pp_size", 1)
            updated = cut in UPDATED[folder.name]
            cuts[cut] = dict(one_rank(folder, socket_path, rank, sizes, updated) for rank in range(world))
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(folder) for folder in sys.argv[2:]])
