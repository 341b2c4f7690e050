"""The cluster that the demo runs on: the rack, or the user's own when KUBECONFIG names one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from demo.settings import ROOT, Settings
from demo.stages import Progress, Stage
from kit import tools
from kit.apiserver import ApiServer
from kit.chart import Helm
from kit.errors import CommandFailed
from kit.kubectl import Kubectl
from kit.modules import environment

RACK_KUBECONFIG = ROOT / "build" / "rack" / "kubeconfig"
TAIL = 12
"""Lines of a failed command's output that the error repeats; all of it is in the log."""


@dataclass
class Cluster:
    kubectl: Kubectl
    helm: Helm
    api: ApiServer


def start(settings: Settings, progress: Progress) -> Cluster:
    """Bring the rack up, or find the user's cluster. Afterwards every node is Ready."""
    if settings.own_cluster is None:
        with progress.stage("rack: four nodes, real kubelets") as stage:
            module(stage, settings.out / "logs" / "rack-up.log", "rack", "up", seconds=3600)
        kubeconfig = RACK_KUBECONFIG
    else:
        kubeconfig = Path(settings.own_cluster)
    with progress.stage("cluster answers") as stage:
        kubectl = Kubectl(tools.find("kubectl"), kubeconfig)
        nodes = kubectl.items("nodes")
        stage.say(f"{len(nodes)} nodes, {kubeconfig}")
        return Cluster(kubectl, Helm(tools.find("helm"), kubeconfig), ApiServer(kubectl))


def module(stage: Stage, log: Path, *arguments: str, seconds: float) -> None:
    """Run `python -m …` of this repository; its newest line is the stage's note, all of them go to the log."""
    command(stage, log, [sys.executable, "-m", *arguments], seconds=seconds)


def command(stage: Stage, log: Path, argv: Sequence[str], *, seconds: float) -> None:
    """Run a command to its end. Raises CommandFailed with the last lines and the log's name."""
    log.parent.mkdir(parents=True, exist_ok=True)
    shown = " ".join([Path(argv[0]).name, *argv[1:]])
    tail: deque[str] = deque(maxlen=TAIL)
    with (
        log.open("w") as file,
        subprocess.Popen(
            list(argv),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **environment()},
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                file.write(line)
                file.flush()
                tail.append(line.rstrip())
                stage.say(line.strip()[:100])
            status = process.wait(seconds)
        except BaseException:  # Ctrl-C, too: the program must not outlive us
            process.terminate()
            process.wait(60)
            raise
    if status:
        raise CommandFailed(shown, status, "\n".join([*tail, f"(all of it: {log})"]))
