"""Real servers of two ranks: each has an arena of its own, and an attached one answers as the seed does.

That both answer as plain SGLang of two ranks is shown on the rack (e2e/tests/test_ranks.py), and bit by bit below.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flashboot_agent.wire import attach as wire
from flashboot_agent.wire.place import Place
from flashboot_operator.core.ranks import places_of_pod
from tests.engine import peer as peers
from tests.engine.servers import PATHS, ROOT, START_SECONDS, Server, install_entry_point
from tests.engine.test_server import PROMPTS, flags

RANKS = [Place(tp=0), Place(tp=1)]
MEASURED = "Memory baseline taken"
"""What SGLang logs of each rank right after it measured the free memory."""


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    started: list[Server] = []
    yield started
    for server in started:
        server.stop()


def test_two_ranks_seed_and_attach_and_none_measures_memory_before_all_have_theirs(
    checkpoints: dict[str, Path], servers: list[Server], socket_path: Path, tmp_path: Path
) -> None:
    plugin = install_entry_point(tmp_path / "site")
    peer = peers.Peer(socket_path)
    checkpoint = checkpoints["qwen3_moe"]
    wide = ("--tp-size", "2")
    seed = Server(checkpoint, tmp_path, *wide, *flags(socket_path), plugin=plugin, ranks=2)
    servers.append(seed)
    peer.wait_for(wire.Attached, 2, seconds=300)
    seed.wait_ready()
    expected = {prompt: seed.tokens(prompt) for prompt in PROMPTS}
    assert len({tuple(tokens) for tokens in expected.values()}) == len(PROMPTS)
    assert sorted(peer.arenas, key=str) == RANKS
    one, two = (peer.arena(place) for place in RANKS)
    assert one.nbytes > 0
    assert (one.identity["tp_rank"], two.identity["tp_rank"]) == ("0", "1")
    seed.stop()

    # Without weight files the ranks can have their weights from the arenas only. Rank 1's memory is delayed.
    shutil.copytree(checkpoint, tmp_path / "bare", ignore=shutil.ignore_patterns("*.safetensors*"))
    peer.seen.clear()
    peer.late = {RANKS[1]}
    attached = Server(tmp_path / "bare", tmp_path, *wide, *flags(socket_path), plugin=plugin, ranks=2)
    servers.append(attached)
    peer.wait_for(wire.Hello, 2, seconds=300)
    attached.wait_log("no memory is reserved yet for rank tp1 of this pod", 2)
    assert MEASURED not in attached.log.read_text(errors="replace"), "both ranks wait"
    peer.late = set()
    peer.wait_for(wire.Attached, 2, seconds=300)
    attached.wait_ready()
    assert attached.log.read_text(errors="replace").count(MEASURED) == 2
    assert {prompt: attached.tokens(prompt) for prompt in PROMPTS} == expected
    peer.close()


def test_what_every_rank_holds_is_bit_equal_to_what_plain_sglang_loads(
    checkpoints: dict[str, Path], socket_path: Path, tmp_path: Path
) -> None:
    """Seeded and attached, rank by rank, for every way to cut a model; where a CPU cannot compute, it can load."""
    from tests.engine.rank_loads import CUTS

    folders = [str(checkpoints[name]) for name in CUTS]
    command = [sys.executable, "-m", "tests.engine.rank_loads", str(socket_path), *folders]
    paths = [*PATHS, ROOT, ROOT / "e2e"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=START_SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert {name: cuts.keys() for name, cuts in found.items()} == {name: cuts.keys() for name, cuts in CUTS.items()}
    for name, cut in ((name, cut) for name, cuts in CUTS.items() for cut in cuts):
        ranks, sizes = found[name][cut], CUTS[name][cut]
        places = {str(place) for place in places_of_pod(tensor=sizes["tp_size"], pipeline=sizes.get("pp_size", 1))}
        assert ranks.keys() == places, (name, cut)
        assert not [each for told in ranks.values() for each in told["differences"]], (name, cut)
        assert len({told["digest"] for told in ranks.values()}) == len(places), f"{name}, {cut}: each has its own bytes"
        assert len({json.dumps(told["ranks"]) for told in ranks.values()}) == len(places), (name, cut)
