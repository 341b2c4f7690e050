"""What FlashBoot does not carry is refused before a byte moves and told to the agent; late writers get words."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flashboot_agent.core.errors import (
    CheckpointMissing,
    FlashBootError,
    IdentityMismatch,
    SeedFailed,
    UnsupportedModel,
)
from flashboot_agent.engine import guard, identity, session, support
from flashboot_agent.engine.settings import EngineSettings
from flashboot_agent.wire import attach as wire
from tests.engine import peer as peers
from tests.engine import runtime


def model(architecture: str = "LlamaForCausalLM", **facts: Any) -> Any:
    config = SimpleNamespace(architectures=[architecture], quantization_config=facts.pop("quantization_config", None))
    return SimpleNamespace(**({"is_draft_model": False, "quantization": None, "hf_config": config} | facts))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (model("DeepseekV3ForCausalLM"), "DeepseekV3ForCausalLM"),
        (model(""), "architecture"),
        (model(quantization="fp8"), "quantisation fp8"),
        (model(quantization_config={"quant_method": "awq"}), "quantisation awq"),
        (model(is_draft_model=True), "draft"),
    ],
)
def test_models_that_are_not_on_the_list(config: Any, says: str, checkpoints: dict[str, Path]) -> None:
    runtime.publish(checkpoints["llama"])
    with pytest.raises(UnsupportedModel, match=says):
        support.require_supported(config)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"weight_cache_mode": "client"}, "--weight-cache-mode"),
        ({"custom_weight_loader": ["some.loader"]}, "--custom-weight-loader"),
        ({"enable_weights_cpu_backup": True}, "--enable-weights-cpu-backup"),
        ({"cpu_offload_gb": 1}, "--cpu-offload-gb"),
        ({"ep_num_redundant_experts": 2}, "--ep-num-redundant-experts"),
        ({"enable_eplb": True}, "--enable-eplb"),
    ],
)
def test_features_that_write_or_move_weights(
    arguments: dict[str, Any], says: str, checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.srt.runtime_context import get_context

    config = runtime.publish(checkpoints["llama"])
    get_context().override("test", **arguments)
    with pytest.raises(UnsupportedModel, match=says):
        support.require_supported(config)


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
    with pytest.raises(IdentityMismatch, match=r"env\.SGLANG_OPT_SOMETHING: engine '1', arena None"):
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


# Identity ------------------------------------------------------------------------------------------------------


def test_the_identity_follows_what_changes_the_bytes(
    checkpoints: dict[str, Path], socket_path: Path, tmp_path: Path
) -> None:
    config = runtime.publish(checkpoints["llama"], socket_path)
    settings = EngineSettings(model="m", revision="1")
    base = identity.identity_of(settings, config)
    assert base == identity.identity_of(settings, config)
    assert base != identity.identity_of(EngineSettings(model="m", revision="2"), config)
    changed = tmp_path / "config.json"
    changed.write_text(
        json.dumps(json.loads((checkpoints["llama"] / "config.json").read_text()) | {"rms_norm_eps": 1e-5})
    )
    config.model_path = str(tmp_path)
    other = identity.identity_of(settings, config)
    assert {key for key in base if base[key] != other[key]} == {"config_sha256"}
    changed.unlink()
    with pytest.raises(CheckpointMissing, match=r"config\.json can't be read"):
        identity.identity_of(settings, config)


def test_variables_count_unless_they_are_about_places_times_and_words() -> None:
    environment = {
        "SGLANG_USE_AITER": "1",
        "SGLANG_SOMETHING_NEW": "x",
        "SGLANG_HOST_IP": "10.0.0.1",
        "SGLANG_RUN_ID": "r",
        "SGLANG_LOG_MS": "1",
        "SGLANG_CPU_OMP_THREADS_BIND": "0",
        "HOME": "/",
    }
    assert identity.layout_variables(environment) == {"env.SGLANG_USE_AITER": "1", "env.SGLANG_SOMETHING_NEW": "x"}


# Late writers --------------------------------------------------------------------------------------------------


@pytest.fixture
def as_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "is_ours", lambda: True)


def never(*_: Any, **__: Any) -> Any:
    raise AssertionError("SGLang's own method was reached")


@pytest.mark.parametrize("operation", sorted(guard.ANSWERS))
def test_an_update_of_the_weights_is_answered_with_no(operation: str, as_ours: None) -> None:
    answer = guard.refuse_update(operation)(never, SimpleNamespace(), SimpleNamespace())
    assert answer.success is False
    assert answer.message.startswith(f"{operation} is refused: ")
    assert "read-only" in answer.message


@pytest.mark.parametrize("operation", guard.MEMORY)
def test_giving_up_the_memory_is_an_error(operation: str, as_ours: None) -> None:
    with pytest.raises(FlashBootError, match=f"{operation} is refused"):
        guard.refuse_memory(operation, lambda: True)(never)


def test_a_check_that_writes_is_refused_and_others_go_on(as_ours: None) -> None:
    assert guard.check_weights(never, None, SimpleNamespace(action="reset_tensors")).success is False
    assert guard.check_weights(lambda *_: "done", None, SimpleNamespace(action="checksum")) == "done"


def test_engines_that_are_not_ours_are_not_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "is_ours", lambda: False)
    assert guard.refuse_update("update_weights_from_disk")(lambda *_: "done", None, None) == "done"
    assert guard.refuse_memory("release_memory_occupation", lambda: False)(lambda: "done") == "done"
    assert guard.check_weights(lambda *_: "done", None, SimpleNamespace(action="reset_tensors")) == "done"
