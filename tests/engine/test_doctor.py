"""`flashboot doctor` in the real engine environment: everything in place, and each thing that may be missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flashboot_agent.engine import seams
from flashboot_agent.engine.doctor import image
from flashboot_agent.engine.doctor.findings import Check, Odd, run
from tests.engine import peer as peers
from tests.engine.servers import PATHS, ROOT, install_entry_point


def doctor(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, document and log of a process of its own, with the plug-in found as an installed wheel would be."""
    plugin = install_entry_point(tmp_path / "site")
    paths = [*PATHS, ROOT / "operator", plugin]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "SGLANG_USE_CPU_ENGINE": "1",
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "flashboot_operator.cli.main", "doctor", "-o", "json", *arguments],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return done.returncode, json.loads(done.stdout), done.stderr


def test_where_everything_is_in_place_nothing_is_wrong(
    checkpoints: dict[str, Path], socket_path: Path, tmp_path: Path
) -> None:
    peer = peers.Peer(socket_path)
    extra = {"flashboot": {"model": "m", "revision": "1", "socket": str(socket_path)}}
    code, said, log = doctor(
        tmp_path,
        "--",
        *("--model-path", str(checkpoints["llama"]), "--load-format", "private"),
        *("--model-loader-extra-config", json.dumps(extra), "--device", "cpu"),
        *("--attention-backend", "torch_native", "--disable-cuda-graph"),
    )
    checks = {check["check"]: check for check in said["checks"]}
    assert code == 0, (said, log)
    assert {name for name, check in checks.items() if check["state"] == "wrong"} == set()
    assert checks["symbols"]["found"] == f"{len(seams.SEAMS)} names of SGLang are as known"
    assert {checks[name]["state"] for name in ("sglang", "torch", "native", "plug-in", "hooks")} == {"ok"}
    assert "version" in checks["agent"]["found"], "it answered; its version is the checkout's"
    assert checks["identity"]["details"]["architecture"] == "LlamaForCausalLM"
    assert checks["identity"]["details"]["model"] == "m"
    peer.close()


def test_torch_must_view_what_was_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    assert image.torch() == torch.__version__
    from flashboot_agent.engine import views

    other = {"a.weight": torch.zeros(3, 2), "b": torch.tensor([1, 2])}
    monkeypatch.setattr(views, "by_name", lambda layout, base: other)
    with pytest.raises(Odd, match=r"views other bytes than were packed: a\.weight"):
        image.torch()


def test_names_that_are_not_as_known_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = (seams.Seam("sglang.srt.utils:no_such"), seams.Seam("sglang.srt.utils:cpu_has_amx_support", "device"))
    monkeypatch.setattr(seams, "SEAMS", odd)
    found = run(Check("symbols", image.symbols, "advice"))
    assert found.state == "wrong"
    assert len(found.found.splitlines()) == 2
