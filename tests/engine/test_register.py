"""`register`: silent for engines that are not ours, and no engine of ours ever starts without the hook."""

from __future__ import annotations

import json
import multiprocessing
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from flashboot_agent.core.errors import BadRequest, UnsupportedEngine
from flashboot_agent.engine import drain, plugin
from tests.engine import runtime

OURS = [
    *("--model-path", "org/name", "--load-format", "private", "--model-loader-extra-config"),
    json.dumps({"flashboot": {"model": "m", "revision": "1"}}),
]


@pytest.fixture
def command_line(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(drain, "end_at_once_before_serving", lambda: None)  # the handler would be pytest's

    def set_to(arguments: list[str]) -> None:
        monkeypatch.setattr(sys, "argv", ["launch_server", *arguments])
        monkeypatch.delitem(sys.modules, plugin.SCHEDULER_MODULE, raising=False)

    return set_to


@pytest.fixture
def other_version(monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.6.0" if name == "sglang" else real(name))


def test_an_engine_that_is_not_ours_is_left_alone(command_line: Any, other_version: None) -> None:
    command_line(["--model-path", "org/name"])
    plugin.register()


def test_another_sglang_ends_an_engine_of_ours(command_line: Any, other_version: None) -> None:
    command_line(OURS)
    with pytest.raises(SystemExit, match=r"works with SGLang 0\.5\.23 and found 0\.6\.0"):
        plugin.register()


def test_another_sglang_is_refused_by_the_factory_too(hooked: None, other_version: None, checkpoints: Any) -> None:
    """For engines that are started from Python, without a command line."""
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_loader import loader

    config = LoadConfig(load_format="private", model_loader_extra_config=OURS[-1])
    with pytest.raises(UnsupportedEngine):
        loader.get_model_loader(config, None)


def test_wrong_settings_end_an_engine_of_ours(command_line: Any) -> None:
    command_line([*OURS[:-1], '{"flashboot": {"model": "m"}}'])
    with pytest.raises(SystemExit, match=r"flashboot\.revision: Field required"):
        plugin.register()


def test_a_plugin_that_can_not_be_imported_ends_an_engine_of_ours(
    command_line: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    command_line(OURS)
    monkeypatch.setitem(sys.modules, "flashboot_agent.engine.preflight", None)
    with pytest.raises(SystemExit, match="the engine does not start: "):
        plugin.register()


def test_hooks_that_sglang_does_not_take_end_an_engine_of_ours(
    command_line: Any, monkeypatch: pytest.MonkeyPatch, hooked: None
) -> None:
    command_line(OURS)
    monkeypatch.setitem(sys.modules, plugin.SCHEDULER_MODULE, sys)
    monkeypatch.setattr(plugin, "scheduler_hooks", lambda: {"sglang.srt.no.such.thing": print})
    from sglang.srt.plugins.hook_registry import HookRegistry

    with pytest.raises(SystemExit, match=r"did not take the hooks on sglang\.srt\.no\.such\.thing"):
        plugin.register()
    HookRegistry._hooks.pop("sglang.srt.no.such.thing")


def test_only_the_main_process_waits_for_the_model_folder(command_line: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from flashboot_agent.engine import preflight

    seen: list[list[str]] = []
    monkeypatch.setattr(preflight, "before_start", seen.append)
    monkeypatch.setattr(plugin, "install", lambda hooks: None)
    command_line(OURS)
    plugin.register()
    monkeypatch.setattr(multiprocessing, "parent_process", object)
    plugin.register()
    assert seen == [OURS]


def test_the_factory_gives_ours_for_ours_and_sglangs_own_for_others(hooked: None, checkpoints: dict[str, Path]) -> None:
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_loader import loader

    from flashboot_agent.engine.loader import FlashBootLoader

    config = runtime.publish(checkpoints["llama"])
    assert type(loader.get_model_loader(LoadConfig(), config)) is loader.DefaultModelLoader
    private = LoadConfig(load_format="private", model_loader_extra_config=OURS[-1])
    assert type(loader.get_model_loader(private, config)) is FlashBootLoader
    assert type(loader.get_model_loader(load_config=private, model_config=config)) is FlashBootLoader
    with pytest.raises(ValueError, match="private_model_loader"):
        loader.get_model_loader(LoadConfig(load_format="private"), config)
    for wrong in ("auto", "dummy", "safetensors"):
        with pytest.raises(BadRequest, match=f"goes with --load-format private, not {wrong}"):
            loader.get_model_loader(LoadConfig(load_format=wrong, model_loader_extra_config=OURS[-1]), config)
