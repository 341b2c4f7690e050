"""The demo's checkpoints: the same bytes every time, sound files, a tokenizer that loses no text."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from demo import checkpoint
from demo.architectures import SHAPES, config, tensors
from demo.recipes import recipe
from flashboot_agent.core.checkpoint import check_config, check_weights
from tests.engine.runtime import CASES, QUANTISED


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_the_same_seed_gives_the_same_bytes_and_another_other_ones(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    checkpoint.make_checkpoint(tmp_path / "again", size="tiny")
    assert contents(tmp_path / "again") == contents(checkpoints["qwen3_moe"])
    checkpoint.make_checkpoint(tmp_path / "other", size="tiny", seed=8)
    differing = {
        name for name, data in contents(tmp_path / "other").items() if data != contents(tmp_path / "again")[name]
    }
    assert differing == {f"model-0000{number}-of-00002.safetensors" for number in (1, 2)}


@pytest.mark.parametrize("name", CASES | QUANTISED)
def test_files_are_sound_and_complete(name: str, checkpoints: dict[str, Path]) -> None:
    import torch
    from safetensors.torch import load_file

    folder, case = checkpoints[name], (CASES | QUANTISED)[name]
    made = recipe(case.arch, "tiny", tied=case.tied, fp8=case.fp8)
    types = {"BF16": torch.bfloat16, "F32": torch.float32, "I32": torch.int32, "F8_E4M3": torch.float8_e4m3fn}
    wanted = {tensor.name: (types[tensor.dtype], tensor.shape) for tensor in made.tensors}
    assert check_config(folder)["model_type"] == case.arch
    weights = check_weights(folder)
    index = json.loads((folder / checkpoint.INDEX).read_text())
    assert weights.tensors == len(index["weight_map"])
    assert weights.data_bytes == index["metadata"]["total_size"]
    for file in weights.files:
        for place, tensor in load_file(folder / file).items():
            assert (tensor.dtype, tuple(tensor.shape)) == wanted.pop(place), place
            assert torch.isfinite(tensor.float()).all(), place
    assert not wanted


@pytest.mark.parametrize("name", [name for name in CASES if name != "deepseek_v4"])
def test_transformers_knows_every_tensor(name: str, checkpoints: dict[str, Path]) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(checkpoints[name]))
    case = CASES[name]
    expected = sum(parameter.numel() for parameter in model.parameters())
    biases = [buffer for place, buffer in model.named_buffers() if place.endswith("e_score_correction_bias")]
    expected += sum(buffer.numel() for buffer in biases)
    stored = recipe(case.arch, "tiny", tied=case.tied).tensors
    assert sum(math.prod(tensor.shape) for tensor in stored) == expected


def test_the_tokenizer_gives_back_any_text(checkpoints: dict[str, Path]) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoints["llama"])
    for text in ("The agent copies its weights.", "čeština, 日本語, 🙂", "\x00 tabs\tand\nlines"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer) <= SHAPES["llama", "tiny"].vocab
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1)


def test_the_demo_model_is_about_256_mib() -> None:
    shape = SHAPES["qwen3_moe", "demo"]
    total = 0
    for tensor in tensors("qwen3_moe", shape):
        size = 2
        for width in tensor.shape:
            size *= width
        total += size
    assert abs(total / (256 << 20) - 1) < 0.05
    assert config("qwen3_moe", shape)["num_experts"] == 16


def test_nothing_is_left_behind_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> int:
        raise OSError("disk full")

    monkeypatch.setattr(checkpoint, "write_weights", broken)
    with pytest.raises(OSError, match="disk full"):
        checkpoint.make_checkpoint(tmp_path / "out", size="tiny")
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_kept_and_what_is_unknown_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checkpoint.main([str(tmp_path), "--size", "tiny"]) == 1
    assert "exists" in capsys.readouterr().err
    assert checkpoint.main([str(tmp_path / "x"), "--size", "demo", "--arch", "llama"]) == 1
    assert "no demo checkpoint of llama" in capsys.readouterr().err
