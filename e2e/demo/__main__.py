"""`python -m demo`: run it all, say how it went, leave nothing behind (unless KEEP=1), exit 0 only if all held."""

from __future__ import annotations

import signal
import sys
import types

from demo import cluster as clusters
from demo.cluster import Cluster
from demo.scenario import PLAIN_NAMESPACE, Scenario
from demo.settings import Settings
from demo.stages import Progress
from kit import checkpoints
from kit.chart import wait_installed
from kit.diagnose import collect
from kit.errors import KitError

VALUES: dict[str, object] = {"image.tag": "dev", "holder.budgetMiB": 1024}
"""What the rack needs: its own images, and a budget that four nodes on one small machine can keep."""


def main() -> int:
    settings, progress = Settings(), Progress()
    signal.signal(signal.SIGTERM, _interrupt)
    cluster: list[Cluster] = []
    try:
        return _run(settings, progress, cluster)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except KitError as failed:
        _explain(settings, progress, cluster, failed)
        return 1
    finally:
        _tear_down(settings, progress, cluster)


def _run(settings: Settings, progress: Progress, found: list[Cluster]) -> int:
    with progress.stage("checkpoint") as stage:
        made = checkpoints.ensure(settings.checkpoint)
        stage.say(f"{'made' if made else 'cached'}: {checkpoints.path_of(settings.checkpoint)}")
    cluster = clusters.start(settings, progress)
    found.append(cluster)
    with progress.stage("helm install") as stage:
        cluster.helm.install(VALUES)
        stage.say("waiting for the pods")
        wait_installed(cluster.api, settings.install_seconds)
    verdicts = Scenario(settings, cluster, progress).run()
    print()
    print((settings.out / "report.md").read_text())
    for verdict in verdicts:
        print(verdict)
    print(f"\n{settings.out / 'report.json'}\n{settings.out / 'report.md'}")
    if not all(verdict.passed for verdict in verdicts):
        raise KitError("a check failed; see the lines above")
    return 0


def _explain(settings: Settings, progress: Progress, found: list[Cluster], failed: KitError) -> None:
    logs = settings.out / "logs"
    for cluster in found:
        collect(cluster.kubectl, logs, (settings.namespace, PLAIN_NAMESPACE))
    step = progress.current.name if progress.current else "start"
    print(f"\nFAILED in step: {step}\n{failed}\nlogs: {logs}", file=sys.stderr)


def _tear_down(settings: Settings, progress: Progress, found: list[Cluster]) -> None:
    """What we started ends; what was there stays."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for cluster in found:
        cluster.api.close()
    if settings.keep:
        print("KEEP=1: the cluster stays up; `make rack-down` removes it")
        return
    with progress.stage("tear down") as stage:
        if settings.own_cluster is None:
            clusters.module(stage, settings.out / "logs" / "rack-down.log", "rack", "down", seconds=120)
        for cluster in found if settings.own_cluster is not None else ():
            cluster.kubectl("delete", "-f", str(settings.example), "--ignore-not-found", seconds=120)
            cluster.helm.uninstall()


def _interrupt(number: int, frame: types.FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
