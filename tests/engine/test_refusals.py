"""What FlashBoot does not carry is refused before a byte moves and told to the agent; late writers get words."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from flashboot_agent.core.errors import (
    IdentityMismatch,
    SeedFailed,
    UnsupportedEngine,
    UnsupportedModel,
)
from flashboot_agent.engine import session, support
from flashboot_agent.wire import attach as wire
from tests.engine import peer as peers
from tests.engine import refused, runtime
from tests.engine.runtime import QUANTISED


@pytest.mark.parametrize("what", refused.MODELS)
def test_models_that_are_not_on_the_list(what: str, checkpoints: dict[str, Path]) -> None:
    config, says = refused.MODELS[what]
    runtime.publish(checkpoints["llama"])
    with pytest.raises(UnsupportedModel, match=says):
        support.require_supported(config)


@pytest.mark.parametrize("flag", refused.FLAGS)
def test_features_that_write_or_move_weights(flag: str, checkpoints: dict[str, Path]) -> None:
    from sglang.srt.runtime_context import get_context

    config = runtime.publish(checkpoints["llama"])
    get_context().override("test", **refused.FLAGS[flag])
    with pytest.raises((UnsupportedModel, UnsupportedEngine), match=f"^{flag}"):
        support.require_supported(config)


def test_every_flag_that_is_refused_is_in_the_table() -> None:
    source = inspect.getsource(support._require_features)
    flags = set(re.findall(r'"(--[a-z0-9-]+)":', source)) | {
        f"--{n.replace('_', '-')}" for n in support._NOT_YET_PARALLEL
    }
    assert refused.FLAGS.keys() == flags | {"--device"}


@pytest.mark.parametrize("name", QUANTISED)
def test_a_quantised_checkpoint_is_refused_before_a_byte_moves(
    name: str, hooked: None, checkpoints: dict[str, Path], socket_path: Path
) -> None:
    peer = peers.Peer(socket_path)
    config = runtime.publish(checkpoints[name], socket_path)
    with pytest.raises(UnsupportedModel, match="quantisation fp8 in blocks"):
        runtime.load(config)
    peer.wait_for(wire.Trouble)
    assert peer.count(wire.Hello) == peer.count(wire.Allocate) == 0
    forget()
    peer.close()


def test_an_unsupported_model_is_told_to_the_agent_and_raised_before_a_byte_moves(
    hooked: None, checkpoints: dict[str, Path], socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = peers.Peer(socket_path)
    config = runtime.publish(checkpoints["llama"], socket_path)
    monkeypatch.setattr(support, "ARCHITECTURES", frozenset({"OtherForCausalLM"}))
    with pytest.raises(UnsupportedModel):
        runtime.load(config)
    peer.wait_for(wire.Trouble)
    assert [message.problem.reason for message in peer.seen if isinstance(message, wire.Trouble)] == [
        "UnsupportedModel"
    ]
    assert peer.count(wire.Allocate) == 0
    forget()
    peer.close()


def test_a_checkpoint_that_sglang_can_not_load_is_told_and_nothing_is_committed(
    hooked: None, checkpoints: dict[str, Path], socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.srt.model_loader.loader import DefaultModelLoader

    peer = peers.Peer(socket_path)
    config = runtime.publish(checkpoints["llama"], socket_path)

    def broken(*_: Any) -> None:
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(DefaultModelLoader, "load_weights_only", broken)
    with pytest.raises(SeedFailed, match=r"could not load .* RuntimeError: shapes differ"):
        runtime.load(config)
    peer.wait_for(wire.Trouble)
    assert peer.count(wire.Allocate) == peer.count(wire.Commit) == 0
    forget()
    peer.close()


def test_an_arena_of_another_identity_is_refused(
    hooked: None, checkpoints: dict[str, Path], socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = peers.Peer(socket_path)
    config = runtime.publish(checkpoints["llama"], socket_path)
    runtime.load(config)
    forget()
    monkeypatch.setenv("SGLANG_OPT_SOMETHING", "1")
    with pytest.raises(IdentityMismatch, match=r"env\.SGLANG_OPT_SOMETHING: engine '1', arena has none"):
        runtime.load(config)
    peer.wait_for(wire.Trouble)
    forget()
    peer.close()


def test_a_lost_commit_is_repeated_and_the_model_is_the_same(
    hooked: None, checkpoints: dict[str, Path], socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flashboot_agent.engine import seed

    monkeypatch.setattr(seed, "RETRY_SECONDS", 0.01)
    peer = peers.Peer(socket_path)
    peer.commits_to_lose = 2
    loader, _ = runtime.load(runtime.publish(checkpoints["llama"], socket_path))
    assert loader.preloaded_weights_bytes == 0
    assert peer.count(wire.Commit) == 3
    forget()
    peer.close()


def forget() -> None:
    settings = session.published_settings()
    assert settings is not None
    session.forget(settings)
