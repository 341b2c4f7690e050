"""Fixtures around a real API server; see apiserver.py."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.component.controlplane import identities
from tests.component.controlplane.apiserver import REPO, ApiError, ApiServer, binaries, launch
from tests.component.controlplane.rig import OperatorProcess, Rig
from tests.component.controlplane.rights import grant

CRD = REPO / "crds" / "flashboot.io_modelreplicas.yaml"


@pytest.fixture(scope="session")
def bin_folder() -> Path:
    folder = binaries()
    if folder is None or not (folder / "kube-apiserver").exists():
        pytest.fail(
            "needs kube-apiserver and etcd: run `make setup`, or set FLASHBOOT_CONTROLPLANE_BIN to their folder"
        )
    return folder


@pytest.fixture(scope="session")
def bare_api(bin_folder: Path) -> Iterator[ApiServer]:
    """An API server without our CRD."""
    server = launch(bin_folder)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def api(bare_api: ApiServer) -> ApiServer:
    """An API server that serves our CRD."""
    crd: dict[str, Any] = yaml.safe_load(CRD.read_text())
    bare_api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    end = time.monotonic() + 20
    while True:
        try:
            bare_api.call("GET", "/apis/flashboot.io/v1alpha1/modelreplicas")
            return bare_api
        except ApiError:
            assert time.monotonic() < end, "the CRD is not served after 20 s"
            time.sleep(0.05)


_numbers = itertools.count()


@pytest.fixture
def namespace(api: ApiServer) -> Iterator[str]:
    name = f"test-{next(_numbers)}"
    api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    yield name
    api.call("DELETE", f"/apis/flashboot.io/v1alpha1/namespaces/{name}/modelreplicas")


@pytest.fixture(scope="session")
def operator(api: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    api.create("/api/v1/namespaces", {"metadata": {"name": "operator-under-test"}})
    grant(api, "operator-under-test")
    identities.prepare(api, "operator-under-test")
    process = OperatorProcess(api, "operator-under-test", tmp_path_factory.mktemp("operator"))
    yield process
    process.kill()
    lines = [
        json.loads(line) for log in process.logs() for line in log.read_text().splitlines() if line.startswith("{")
    ]
    refused = [
        x
        for x in lines
        if "orbidden" in x["event"]
        and "exceeded quota" not in x["event"]  # no right of ours is missing
        and not api.just_restarted(datetime.fromisoformat(x["time"]))
    ]
    assert not refused, f"the operator asked for more than it may: {refused[:3]}"


@pytest.fixture
async def rig(api: ApiServer, namespace: str, operator: OperatorProcess) -> AsyncIterator[Rig]:
    """With an operator that runs and is ready."""
    operator.start()
    await operator.ready()
    made = Rig(api, namespace, operator)
    yield made
    await made.close()
