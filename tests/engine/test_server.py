"""Real servers with Qwen3-MoE: a seed that first waits for a broken checkpoint, an attached engine, a plain SGLang.

Slow (an SGLang server starts in about 30 s of CPU time per process), hence one story with everything in it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from flashboot_agent.wire import attach as wire
from tests.engine import peer as peers
from tests.engine.servers import Server, install_entry_point

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
    seed = Server(model, tmp_path, *flags(socket_path), plugin=plugin)
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
    attached = Server(tmp_path / "bare", tmp_path, *flags(socket_path), plugin=plugin)
    unhooked = Server(checkpoint, tmp_path, *flags(socket_path), plugin=None)
    servers += [attached, unhooked]
    peer.wait_for(wire.Attached, 2, seconds=300)
    attached.wait_ready()
    assert {prompt: attached.tokens(prompt) for prompt in PROMPTS} == expected

    late_writers_are_refused(attached, checkpoint)
    assert attached.tokens(PROMPTS[0]) == expected[PROMPTS[0]]

    # SGLang without the plug-in, with the same flags: it ends, and loads nothing.
    assert unhooked.wait_end() != 0
    assert "private_model_loader" in unhooked.log.read_text()
    assert "Load weight end" not in unhooked.log.read_text()
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
