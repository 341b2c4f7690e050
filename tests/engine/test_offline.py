"""`flashboot delta trace|convert` in the real engine environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flashboot_operator.cli.main import main
from tests.engine.offline_words import arguments
from tests.engine.servers import ROOT


def test_both_words_make_the_same_arena_of_a_checkpoint(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    paths = [ROOT, ROOT / "agent", ROOT / "operator", ROOT / "e2e", ROOT / "e2e" / "engine_stub"]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "SGLANG_USE_CPU_ENGINE": "1",
        "HF_HUB_OFFLINE": "1",
    }
    words = [sys.executable, "-m", "tests.engine.offline_words", str(checkpoints["llama"]), str(tmp_path)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said == {"codes": [0, 0, 1], "same": True, "changed": True, "version": 7}
    assert "new.image is there already" in done.stderr


def test_arguments_that_name_no_model_of_ours_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["delta", "trace", str(tmp_path / "none"), str(tmp_path / "map"), *arguments(tmp_path)]) == 1
    assert "none" in capsys.readouterr().err
    assert not (tmp_path / "map").exists()
