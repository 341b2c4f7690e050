"""The full identity against the real SGLang: all that may change an arena changes it, and what does not is known.

When one of these fails after a move to another SGLang, look at what the argument or variable does: put it into the
table of engine/arguments.py or engine/variables.py with a reason, or take it out of there. When in doubt, out.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flashboot_agent.core.errors import CheckpointMissing, IdentityMismatch, UnsupportedEngine
from flashboot_agent.core.identity import digest_of, require_equal
from flashboot_agent.engine import arguments, identity, structure, variables
from flashboot_agent.engine.settings import EngineSettings
from flashboot_agent.wire.attach import MAX_MESSAGE, Hello
from tests.engine import runtime
from tests.engine.fields import field_names

SETTINGS = EngineSettings(model="m", revision="1")
THIRD_PARTY = {"DG_JIT_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE", "FLASHINFER_DISABLE_VERSION_CHECK"}
"""Variables of the table that SGLang sets for others and does not declare."""


@pytest.fixture(scope="module")
def config(checkpoints: dict[str, Path]) -> Any:
    return runtime.publish(checkpoints["llama"])


@pytest.fixture(scope="module")
def base(config: Any) -> dict[str, str]:
    return identity.identity_of(SETTINGS, config)


def changed(base: dict[str, str], config: Any) -> set[str]:
    """Fields in which the identity differs now; the refusal must name one of them with both values."""
    now = identity.identity_of(SETTINGS, config)
    fields = {name for name in base.keys() | now.keys() if base.get(name) != now.get(name)}
    if fields:
        with pytest.raises(IdentityMismatch, match=re.escape(min(fields))):
            require_equal(now, base, whose="arena")
        assert digest_of(now) != digest_of(base)
    return fields


# Arguments ------------------------------------------------------------------------------------------------------


def other_value(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return "changed"


@pytest.fixture
def override() -> Iterator[Any]:
    """Sets an argument in the published configuration for the length of a test."""
    from sglang.srt.runtime_context import get_context

    before: dict[str, Any] = {}

    def override(name: str, value: Any) -> None:
        before.setdefault(name, get_context().config_leaf(name))
        get_context().override("test", **{name: value})

    yield override
    for name, value in before.items():
        get_context().override("test", **{name: value})


def test_every_argument_counts_or_has_a_reason_not_to(base: dict[str, str], config: Any, override: Any) -> None:
    """By what the published configuration says of it, however it came there."""
    from sglang.srt.runtime_context import get_context

    before = arguments.counted(*identity.published())
    assert before.items() <= base.items()
    for name in identity.argument_names():
        value = get_context().config_leaf(name)
        override(name, other_value(value))
        now = arguments.counted(*identity.published())
        override(name, value)
        fields = {each for each in before.keys() | now.keys() if before.get(each) != now.get(each)}
        fields -= {"arg.tokenizer_path"} if name == "model_path" else set()  # they were equal, and are not now
        expected = set() if name in arguments.HARMLESS else {f"arg.{name}"}
        assert fields == expected, f"a change of {name} is told as {fields or 'nothing'}"
    assert changed(base, config) == set()


def test_a_changed_argument_changes_the_identity(base: dict[str, str], config: Any, override: Any) -> None:
    override("kv_cache_dtype", "fp8_e4m3")
    assert changed(base, config) == {"arg.kv_cache_dtype"}


def test_other_loader_settings_count_and_ours_do_not(base: dict[str, str], config: Any, override: Any) -> None:
    override("model_loader_extra_config", json.dumps({"flashboot": {"model": "m"}}))
    assert changed(base, config) == set()
    override("model_loader_extra_config", json.dumps({"flashboot": {"model": "m"}, "enable_multithread_load": True}))
    assert changed(base, config) == {"loader_extra_config"}


def test_the_table_names_arguments_that_there_are_once_each() -> None:
    assert arguments.HARMLESS.keys() <= set(identity.argument_names())
    listed = [name for _, names in (*arguments._NOT_READ, *arguments._READ) for name in names.split()]
    assert len(listed) == len(set(listed))


def test_what_builds_and_fills_models_reads_no_harmless_argument() -> None:
    """But for those that the table says are read there, each with its reason."""
    import sglang.srt

    root = Path(sglang.srt.__path__[0])
    read: dict[str, str] = {}
    for folder in ("layers", "models", "model_loader", "configs"):
        for path in (root / folder).rglob("*.py"):
            for name in re.findall(r"\.([A-Za-z_]\w*)", path.read_text()):
                read.setdefault(name, str(path.relative_to(root)))
    odd = {name: read[name] for name in arguments.HARMLESS.keys() - arguments.READ_BY_MODELS.keys() if name in read}
    assert not odd, f"read by code that builds models: {odd}"
    assert arguments.READ_BY_MODELS.keys() <= read.keys(), "these are read no more: move them to the other table"


def test_a_value_that_cannot_be_compared_is_refused() -> None:
    with pytest.raises(UnsupportedEngine, match="argument odd is a object"):
        arguments.counted({"odd": object()}, {})


def test_values_have_one_text_in_every_process() -> None:
    def text(value: Any) -> str:
        return arguments.text_of("x", value)

    assert text({"b": {2, 1}, "a": (1, None)}) == '{"a":[1,null],"b":["1","2"]}'
    assert text("auto") == "auto"
    assert text("x" * 201).startswith("sha256:")
    assert text(1) != text(True)


# Variables ------------------------------------------------------------------------------------------------------


def test_every_variable_that_sglang_declares_counts_or_has_a_reason_not_to(
    base: dict[str, str], config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = variables.declared()
    assert len(declared) > 500
    for name in declared:
        with monkeypatch.context() as patch:
            patch.setenv(name, "odd")
            expected = set() if name in variables.HARMLESS else {f"env.{name}"}
            found = variables.counted(os.environ, declared)
            assert {key for key in found if base.get(key) != found[key]} == expected
    monkeypatch.setenv("SGLANG_OF_TOMORROW", "1")
    monkeypatch.setenv("FLASHINFER_OF_TOMORROW", "1")
    monkeypatch.setenv("PATH_OF_NOBODY", "1")
    assert changed(base, config) == {"env.SGLANG_OF_TOMORROW", "env.FLASHINFER_OF_TOMORROW"}


def test_the_table_names_variables_that_there_are_and_every_secret() -> None:
    import sglang
    from sglang.srt.environ import EnvField, Envs

    declared = variables.declared()
    text = "\n".join(path.read_text() for path in Path(sglang.__path__[0]).rglob("*.py"))
    gone = [name for name in variables.HARMLESS.keys() - declared - THIRD_PARTY if f'"{name}"' not in text]
    assert not gone, f"SGLang reads these no more: {gone}"
    secrets = {name for name, field in vars(Envs).items() if isinstance(field, EnvField) and field.secret}
    assert secrets <= variables.HARMLESS.keys()


def test_no_secret_argument_stands_in_an_identity() -> None:
    named = {name for name in identity.argument_names() if re.search(r"api_key|password|secret|watermark_key", name)}
    assert named
    assert named <= arguments.HARMLESS.keys()


# Everything else ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*identity.SIZES, *identity.RANKS])
def test_every_size_and_rank_counts(
    base: dict[str, str], config: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from sglang.srt import runtime_context

    real = runtime_context.get_parallel()

    class Changed:
        def __getattr__(self, asked: str) -> Any:
            return 77 if asked == name else getattr(real, asked)

    monkeypatch.setattr(runtime_context, "get_parallel", Changed)
    assert changed(base, config) == {name}


@pytest.mark.parametrize("name", identity.PACKAGES)
def test_every_version_counts(base: dict[str, str], config: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    real = identity._version
    monkeypatch.setattr(identity, "_version", lambda asked: "99.9" if asked == name else real(asked))
    assert changed(base, config) == {f"version.{name}"}


@pytest.mark.parametrize("name", identity.FILES)
def test_every_file_that_a_model_is_built_from_counts(
    base: dict[str, str], config: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    folder = Path(config.model_path)
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    monkeypatch.setattr(config, "model_path", str(tmp_path))
    assert changed(base, config) == set()
    (tmp_path / name).write_text('{"odd": 1}')
    assert changed(base, config) == {f"sha256.{name}"}


def test_without_a_readable_configuration_there_is_no_identity(
    config: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(config, "model_path", str(tmp_path))
    with pytest.raises(CheckpointMissing, match=r"config\.json can't be read"):
        identity.identity_of(SETTINGS, config)


def test_the_models_own_facts_count(base: dict[str, str], config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    with monkeypatch.context() as patch:
        patch.setattr(config, "dtype", torch.float16)
        assert changed(base, config) == {"dtype"}
    with monkeypatch.context() as patch:
        patch.setattr(config, "is_draft_model", True)
        assert changed(base, config) == {"role"}
    with monkeypatch.context() as patch:
        patch.setattr(config, "quantization", "fp8")
        patch.setattr(config.hf_config, "quantization_config", {"weight_block_size": [128, 128]}, raising=False)
        assert changed(base, config) == {"quantization", "quantization_config"}
    with monkeypatch.context() as patch:
        patch.setattr(config.hf_config, "architectures", ["Qwen2ForCausalLM"])
        assert changed(base, config) == {"architecture"}
    with monkeypatch.context() as patch:
        patch.setattr(torch.version, "cuda", "99.9")
        assert changed(base, config) == {"cuda"}
    for other in (EngineSettings(model="n", revision="1"), EngineSettings(model="m", revision="2")):
        assert identity.identity_of(other, config) != base


def test_every_field_that_there_may_be_is_caught_and_named(
    base: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    names = field_names()
    unknown = {name for name in base.keys() - set(names) if not name.startswith("env.")}
    assert not unknown, "identity_of knows fields that field_names does not"
    for name in names:
        other = base | {name: "changed"}
        with pytest.raises(IdentityMismatch, match=re.escape(f"{name}: ")) as caught:
            require_equal(other, base, whose="arena")
        assert "'changed'" in str(caught.value)
        assert digest_of(other) != digest_of(base)
    with capsys.disabled():
        print(f"\n{len(names)} fields of the identity changed, each caught and named")


def test_an_identity_is_small(base: dict[str, str]) -> None:
    assert len(Hello(identity=base).to_json()) < MAX_MESSAGE // 8
    most = base | {f"env.SGLANG_{number:04}": "x" * 90 for number in range(200)}
    identity.require_small(most)
    assert len(Hello(identity=most).to_json()) < MAX_MESSAGE
    with pytest.raises(UnsupportedEngine, match="too many arguments and variables"):
        identity.require_small(most | {f"env.SGLANG_X{number:04}": "x" * 90 for number in range(100)})


def test_harmless_settings_give_the_same_identity(
    base: dict[str, str], checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Through SGLang's own resolution, which derives arguments from one another; the model's folder lies elsewhere."""
    monkeypatch.setenv("SGLANG_LOG_MS", "1")
    harmless: dict[str, Any] = {
        "host": "10.0.0.1",
        "port": 31000,
        "log_level": "error",
        "random_seed": 7,
        "enable_metrics": True,
    }
    harmless |= {"mem_fraction_static": 0.4, "max_queued_requests": 9, "served_model_name": "else"}
    config = runtime.publish(shutil.copytree(checkpoints["llama"], tmp_path / "elsewhere"), **harmless)
    require_equal(identity.identity_of(SETTINGS, config), base, whose="one without them")


# Structure ------------------------------------------------------------------------------------------------------


def small(width: int = 4, *, bias: bool = True, dtype: Any = None, extra: bool = False, cls: Any = None) -> Any:
    import torch

    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(4, width, bias=bias, dtype=dtype), (cls or torch.nn.ReLU)())
        if extra:
            model.register_buffer("extra", torch.empty(1), persistent=False)
    return model


def test_a_models_structure_is_its_modules_and_tensors() -> None:
    import torch

    base = structure.structure_of(small())
    assert base == structure.structure_of(small())
    for other in (
        small(5),
        small(bias=False),
        small(dtype=torch.float16),
        small(extra=True),
        small(cls=torch.nn.GELU),
    ):
        assert structure.structure_of(other) != base
        with pytest.raises(IdentityMismatch, match="structure: engine 'sha256:"):
            structure.require_structure(other, base)
    structure.require_structure(small(), base)
    with pytest.raises(IdentityMismatch):
        structure.require_structure(small(), None)
