"""Real `sglang.launch_server` processes for the tests, with the plug-in found by its entry point."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PATHS = [ROOT / folder for folder in ("agent", "e2e/engine_stub", "e2e/images/startup")]
"""Of every Python process that loads SGLang."""
START_SECONDS = 600  # about 30 on a quiet machine; it may be shared with a whole cluster


def install_entry_point(folder: Path) -> Path:
    """A folder for PYTHONPATH that declares the project's entry points, as an installed wheel would."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = folder / f"flashboot-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: flashboot\nVersion: {project['version']}\n")
    lines: list[str] = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


class Server:
    """One engine. `flags` beyond those that a CPU needs; `ranks`: its processes that hold weights; `grace`: seconds
    that it is told to have after SIGTERM."""

    def __init__(
        self, model: Path, folder: Path, *flags: str, plugin: Path | None, ranks: int = 1, grace: int = 30
    ) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = folder / f"server-{self.port}.log"
        paths = [*PATHS, *([plugin] if plugin else [])]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "SGLANG_USE_CPU_ENGINE": "1",
            "SGLANG_CPU_OMP_THREADS_BIND": "|".join(map(str, range(ranks))),
            # Where NVIDIA's library is installed, SGLang would use it between ranks on CPUs, too, and fail.
            "SGLANG_NCCL_SO_PATH": "none",
            "TORCHDYNAMO_DISABLE": "1",  # several ranks compile a small function, which takes longer than it saves here
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "FLASHBOOT_GRACE_SECONDS": str(grace),
        }
        command = [
            *(sys.executable, "-m", "sglang.launch_server", "--model-path", str(model)),
            *("--host", "127.0.0.1", "--port", str(self.port), "--device", "cpu"),
            *("--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--grammar-backend", "none"),
            *("--disable-cuda-graph", "--disable-overlap-schedule", "--disable-radix-cache"),
            *("--max-total-tokens", "2048", "--mem-fraction-static", "0.5", "--skip-server-warmup"),
            "--sleep-on-idle",  # an idle scheduler would spin, on one of the cores that the next engine starts on
            *flags,
        ]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                command, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )

    def wait_ready(self) -> None:
        """Raises AssertionError with the end of the log when the server dies or takes too long."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"the server ended with {self.process.returncode}: {self.tail()}"
            if self.call("GET", "/ready")[0] == 200:
                return
            time.sleep(0.2)  # between two looks
        raise AssertionError(f"not ready within {START_SECONDS} s: {self.tail()}")

    def wait_log(self, words: str, lines: int) -> None:
        """Until that many lines of the log have the words."""
        deadline = time.monotonic() + START_SECONDS
        while sum(words in line for line in self.log.read_text(errors="replace").splitlines()) < lines:
            assert self.process.poll() is None, f"the server ended with {self.process.returncode}: {self.tail()}"
            assert time.monotonic() < deadline, f"no {words!r} within {START_SECONDS} s: {self.tail()}"
            time.sleep(0.2)  # between two looks

    def wait_end(self) -> int:
        try:
            return self.process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {START_SECONDS} s: {self.tail()}") from None

    def tokens(self, prompt: str) -> list[int]:
        """Twelve greedy tokens."""
        body = {"text": prompt, "sampling_params": {"max_new_tokens": 12, "temperature": 0}}
        status, answer = self.call("POST", "/generate", body)
        assert status == 200, answer
        return list(answer["output_ids"])

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        """Status and parsed answer; status 0 when nobody listens."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"content-type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            with error:
                text = error.read()
                return error.code, json.loads(text) if text else None
        except (OSError, ValueError) as error:
            return 0, str(error)

    def terminate(self) -> float:
        """As kubelet does first; the moment of it."""
        self.process.terminate()
        return time.monotonic()

    def stop(self) -> None:
        """End it and all of its children, which are a process group of ours."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-25:])[-6000:]


class Stream:
    """A request for exactly so many tokens, `copies` times; it runs: its first token has come."""

    def __init__(self, server: Server, prompt: str, tokens: int, copies: int = 1) -> None:
        parameters = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
        request = urllib.request.Request(
            f"http://127.0.0.1:{server.port}/generate",
            data=json.dumps({"text": [prompt] * copies, "sampling_params": parameters, "stream": True}).encode(),
            headers={"content-type": "application/json"},
        )
        self._answer = urllib.request.urlopen(request, timeout=120)
        self._events = (json.loads(line[6:]) for line in self._answer if line.startswith(b"data: {"))
        self._last: dict[int, Any] = {}
        self._see(next(self._events))

    def _see(self, event: Any) -> None:
        self._last[event["index"]] = event["meta_info"]

    def to_the_end(self) -> list[tuple[int, str]]:
        """Of each copy how many tokens came, and why they ended."""
        with self._answer:
            for event in self._events:
                self._see(event)
        return [(meta.get("completion_tokens", 0), meta["finish_reason"]["type"]) for meta in self._last.values()]
