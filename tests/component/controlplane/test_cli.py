"""`flashboot status` and `tree` through a real API server's proxy to a real operator, as a person with one right."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from flashboot_operator.cli.main import main
from tests.component.controlplane.apiserver import PERSON, TOKEN, ApiServer
from tests.component.controlplane.rig import OperatorProcess, Rig, eventually
from tests.component.controlplane.test_crd import model_replica

pytestmark = pytest.mark.apiserver

Object = dict[str, Any]
ROLE: Object = {
    "apiGroups": [""],
    "resources": ["services/proxy"],
    "resourceNames": ["http:flashboot-operator:9442"],
    "verbs": ["get"],
}
"""The one of the chart's Role flashboot-viewer, as tests/unit/test_chart.py says."""


def own_address() -> str:
    """No loopback: the API server's proxy goes nowhere near it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return str(sock.getsockname()[0])


@pytest.fixture
async def rig(api: ApiServer, namespace: str, operator: OperatorProcess) -> AsyncIterator[Rig]:
    """The operator listens on all addresses, and has a Service, as in a cluster."""
    operator.kill()
    operator.start(FLASHBOOT_HTTP_HOST="0.0.0.0")
    await operator.ready()
    service = {
        "metadata": {"name": "flashboot-operator"},
        "spec": {"ports": [{"name": "http", "port": 9442, "targetPort": operator.http_port}]},
    }
    made, address = Rig(api, namespace, operator), own_address()
    await made.pod_at("operator-0", address, namespace=operator.namespace)
    target = {"kind": "Pod", "name": "operator-0", "namespace": operator.namespace}  # the proxy goes to pods only
    endpoints = {
        "metadata": {"name": "flashboot-operator"},
        "subsets": [
            {
                "addresses": [{"ip": address, "targetRef": target}],
                "ports": [{"name": "http", "port": operator.http_port}],
            }
        ],
    }
    folder = f"/api/v1/namespaces/{operator.namespace}"
    await made.call("POST", f"{folder}/services", service)
    await made.call("POST", f"{folder}/endpoints", endpoints)
    yield made
    await made.call("DELETE", f"{folder}/services/flashboot-operator")
    await made.call("DELETE", f"{folder}/pods/operator-0", {"gracePeriodSeconds": 0})
    await made.close()
    operator.kill()


async def test_a_person_with_the_viewers_role_sees_and_others_are_told_what_they_lack(
    rig: Rig, api: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(api.kubeconfig.read_text().replace(TOKEN, PERSON))
    as_person = ["--kubeconfig", str(kubeconfig), "--system-namespace", rig.operator.namespace, "-n", rig.namespace]

    async def flashboot(*arguments: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(main, [*arguments, *as_person])
        said = capsys.readouterr()
        return code, said.out, said.err

    await rig.call("POST", rig.path(""), model_replica())
    await eventually("the Deployment is applied", lambda: rig.deployment("m"))
    code, _, error = await flashboot("status")
    assert code == 1
    assert "the verb get on services/proxy for http:flashboot-operator:9442" in error

    folder = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{rig.operator.namespace}"
    group = "rbac.authorization.k8s.io"
    await rig.call("POST", f"{folder}/roles", {"metadata": {"name": "viewer"}, "rules": [ROLE]})
    binding = {
        "metadata": {"name": "viewer"},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "viewer"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": PERSON}],
    }
    await rig.call("POST", f"{folder}/rolebindings", binding)

    async def listed() -> bool:
        code, out, error = await flashboot("status", "-o", "json")
        assert code == 0, error
        return [item["name"] for item in json.loads(out)["items"]] == ["m"]

    await eventually("the person sees the ModelReplica", listed, 20)
    agent = await rig.node(1)
    pod = await rig.pod("m", agent)

    async def fed() -> bool:
        code, out, error = await flashboot("tree", "m", "-o", "json")
        assert code == 0, error
        members = [member for rank in json.loads(out)["ranks"] for member in rank["members"]]
        return [(m["state"], m["pods"]) for m in members] == [("source", [pod["metadata"]["name"]])]

    await eventually("the tree has its source", fed, 20)
    code, out, _ = await flashboot("status", "m")
    assert code == 0
    assert pod["metadata"]["name"] in out
    code, _, error = await flashboot("status", "other")
    assert code == 1
    assert f"no ModelReplica {rig.namespace}/other is known" in error
