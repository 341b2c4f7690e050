"""One rack and one installation for the whole suite; a module is a story whose later chapters need the earlier ones.

Run as `python -m pytest e2e/tests` (root). KEEP=1 leaves the rack up, REUSE=1 takes the one that is up. When something
fails, logs, events and descriptions are in build/e2e/logs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit import tools
from kit.agents import SYSTEM
from kit.apiserver import ApiServer
from kit.chart import Helm, wait_installed
from kit.diagnose import collect
from kit.errors import CommandFailed
from kit.kubectl import Kubectl
from kit.modules import run_module
from kit.world import AWAY_LABEL, NAMESPACE, World

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "build" / "e2e" / "logs"
KUBECONFIG = ROOT / "build" / "rack" / "kubeconfig"
TEST_SECONDS = 120
UP_SECONDS = 3600
"""A cold cache builds Kubernetes and the images first."""


def _not_on(part: str) -> dict[str, object]:
    """Affinity of a DaemonSet that leaves the nodes which a test labels: the part is away, nothing else is changed."""
    rule = {"key": AWAY_LABEL, "operator": "NotIn", "values": [part]}
    terms = [{"matchExpressions": [rule]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


VALUES: dict[str, object] = {
    "image.tag": "dev",
    "holder.budgetMiB": 1024,
    "agent.affinity": _not_on("agent"),
    "door.affinity": _not_on("door"),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test here needs the rack, and its deadline is its own: bringing the rack up does not count."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.rack)
            own = item.get_closest_marker("timeout")
            seconds = own.args[0] if own is not None else TEST_SECONDS
            item.add_marker(pytest.mark.timeout(seconds, func_only=True), append=False)


_broken: dict[str, str] = {}
"""Module → the first test of its story that failed."""


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Remember where a module with STORY = True broke: its later tests would only repeat it, slowly."""
    story = getattr(getattr(item, "module", None), "STORY", False)
    if story and call.excinfo is not None and not call.excinfo.errisinstance(pytest.skip.Exception):
        _broken.setdefault(str(item.path), item.name)


def pytest_runtest_setup(item: pytest.Item) -> None:
    broken_by = _broken.get(str(item.path))
    if broken_by is not None:
        pytest.skip(f"the story ended at {broken_by}")


@pytest.fixture(scope="session")
def rack() -> Iterator[None]:
    """Four nodes, up; down again afterwards."""
    if not os.environ.get("REUSE"):
        run_module("rack", "up", seconds=UP_SECONDS)
    try:
        yield
    finally:
        if not os.environ.get("KEEP"):
            run_module("rack", "down", seconds=120)


@pytest.fixture(scope="session")
def chart_objects(rack: None) -> list[dict[str, Any]]:
    """What `world` has installed, as Helm rendered it."""
    return Helm(tools.find("helm"), KUBECONFIG).rendered(VALUES)


@pytest.fixture(scope="session")
def world(rack: None, request: pytest.FixtureRequest) -> Iterator[World]:
    """The rack with FlashBoot installed by Helm, and a namespace for engines."""
    kubectl = Kubectl(tools.find("kubectl"), KUBECONFIG)
    api = ApiServer(kubectl)
    try:
        Helm(tools.find("helm"), KUBECONFIG).install(VALUES)
        wait_installed(api, 180)
        with kubectl.namespace(NAMESPACE):
            try:
                yield World(kubectl, api)
            finally:
                if request.session.testsfailed:
                    collect(kubectl, LOGS, (NAMESPACE,))
    except CommandFailed:
        collect(kubectl, LOGS, (SYSTEM,))
        raise
    finally:
        api.close()
