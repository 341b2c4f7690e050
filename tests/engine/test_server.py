"""Real servers with Qwen3-MoE: a seed that first waits for a broken checkpoint, an attached engine, a plain SGLang.

Slow (an SGLang server starts in about 30 s of CPU time per process), hence one story with everything in it.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flashboot_agent.wire import attach as wire
from tests.engine import peer as peers
from tests.engine.servers import Server, Stream, install_entry_point

PROMPTS = ("The agent copies", "A distant star", "Every node waits for the mountain")
SHARD = "model-00002-of-00002.safetensors"


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    return install_entry_point(tmp_path / "site")


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    started: list[Server] = []
    yield started
    for server in started:
        server.stop()


def flags(socket_path: Path) -> tuple[str, ...]:
    ours = {"model": "tiny", "revision": "1", "onMismatch": "Fail", "cloneTimeoutSeconds": 60}
    extra = json.dumps({"flashboot": ours | {"socket": str(socket_path)}})
    return ("--load-format", "private", "--model-loader-extra-config", extra)


def troubles(peer: peers.Peer) -> list[str]:
    return [message.problem.reason for message in peer.seen if isinstance(message, wire.Trouble)]


def test_seed_and_attached_engine_answer_like_plain_sglang(
    checkpoints: dict[str, Path], plugin: Path, servers: list[Server], socket_path: Path, tmp_path: Path
) -> None:
    peer = peers.Peer(socket_path)
    checkpoint = checkpoints["qwen3_moe"]
    model = tmp_path / "model"
    plain = Server(checkpoint, tmp_path, plugin=plugin)
    seed = Server(model, tmp_path, *flags(socket_path), plugin=plugin, grace=24)
    servers += [plain, seed]

    # The folder is missing, then a shard ends early, then all is right; the engine lives through it.
    peer.wait_for(wire.Trouble, seconds=300)
    assert troubles(peer) == ["CheckpointMissing"]
    partly = shutil.copytree(checkpoint, tmp_path / "partly")
    whole = (partly / SHARD).read_bytes()
    (partly / SHARD).write_bytes(whole[: len(whole) // 2])
    partly.rename(model)
    peer.wait_for(wire.Clear, seconds=60)
    peer.wait_for(wire.Trouble, 2, seconds=300)
    assert troubles(peer)[1] == "CheckpointTruncated"
    assert peer.count(wire.Allocate) == 0
    (model / SHARD).write_bytes(whole)
    peer.wait_for(wire.Clear, 2, seconds=60)
    peer.wait_for(wire.Attached, seconds=300)
    seed.wait_ready()
    plain.wait_ready()
    expected = {prompt: plain.tokens(prompt) for prompt in PROMPTS}
    assert {prompt: seed.tokens(prompt) for prompt in PROMPTS} == expected
    assert len({tuple(tokens) for tokens in expected.values()}) == len(PROMPTS)
    plain.stop()

    # Without weight files on its disk the second engine can have its weights from the arena only.
    shutil.copytree(checkpoint, tmp_path / "bare", ignore=shutil.ignore_patterns("*.safetensors*"))
    attached = Server(tmp_path / "bare", tmp_path, *flags(socket_path), plugin=plugin, grace=120)
    unhooked = Server(checkpoint, tmp_path, *flags(socket_path), plugin=None)
    servers += [attached, unhooked]
    peer.wait_for(wire.Attached, 2, seconds=300)
    attached.wait_ready()
    assert {prompt: attached.tokens(prompt) for prompt in PROMPTS} == expected

    late_writers_are_refused(attached, checkpoint)
    assert attached.tokens(PROMPTS[0]) == expected[PROMPTS[0]]
    the_agent_was_told_the_startup_times(peer, attached)

    # SGLang without the plug-in, with the same flags: it ends, and loads nothing.
    assert unhooked.wait_end() != 0
    assert "private_model_loader" in unhooked.log.read_text()
    assert "Load weight end" not in unhooked.log.read_text()

    engines_end_within_their_grace_period(attached, seed)
    assert all(arena.memory is not None for arena in peer.arenas.values())  # they stay with the agent
    peer.close()


def late_writers_are_refused(server: Server, checkpoint: Path) -> None:
    for path, body in (
        ("/update_weights_from_disk", {"model_path": str(checkpoint)}),
        ("/begin_weight_update", {}),
        ("/release_memory_occupation", {}),
        ("/resume_memory_occupation", {}),
        ("/weights_checker", {"action": "reset_tensors"}),
    ):
        status, answer = server.call("POST", path, body)
        assert status == 400, (path, status, answer)
        assert "shared and read-only" in json.dumps(answer), (path, answer)


def the_agent_was_told_the_startup_times(peer: peers.Peer, server: Server) -> None:
    """By both engines, of themselves; the same figures as SGLang's own of /server_info."""
    peer.wait_for(wire.Started, 2, seconds=60)
    told = [message.times for message in peer.seen if isinstance(message, wire.Started)]
    status, info = server.call("GET", "/server_info")
    assert status == 200
    seconds = info["startup_time"]
    (mine,) = [times for times in told if times.tokenizer_milliseconds == round(seconds["tokenizer_e2e"] * 1000)]
    assert mine.load_weight_milliseconds == round(seconds["load_weight"] * 1000)
    assert mine.scheduler_milliseconds == round(seconds["scheduler_e2e"] * 1000)
    assert mine.api_ready_milliseconds is not None
    assert mine.load_weight_milliseconds < mine.scheduler_milliseconds < mine.tokenizer_milliseconds
    assert mine.tokenizer_milliseconds < mine.api_ready_milliseconds < 600_000


def engines_end_within_their_grace_period(patient: Server, hasty: Server) -> None:
    """One lets its request run to its end; the other has work for longer than its 24 s, and aborts what is left."""
    short = Stream(patient, PROMPTS[0], 300)
    long = Stream(hasty, PROMPTS[0], 1800, copies=10)
    asked = patient.terminate(), hasty.terminate()
    for server in (patient, hasty):
        deadline = time.monotonic() + 30
        while server.call("GET", "/ready")[0] != 503:  # the signal takes a moment
            assert time.monotonic() < deadline, server.tail()
        body = {"text": "one more", "sampling_params": {"max_new_tokens": 1}}
        status, answer = server.call("POST", "/generate", body)
        assert (status, answer["error"]["code"]) == (503, 503), answer
    assert short.to_the_end() == [(300, "length")]
    ends = long.to_the_end()
    assert "abort" in {why for _, why in ends}, ends
    assert any(tokens for tokens, _ in ends)
    assert (patient.wait_end(), hasty.wait_end()) == (0, 0)
    assert time.monotonic() - asked[1] < 24 + 10  # and what a busy test machine may add
    assert "aborting" in hasty.log.read_text()
    assert "aborting" not in patient.log.read_text()
