"""The MutatingAdmissionPolicy of the chart: a labelled pod comes out as FlashBoot's own workloads would make it."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flashboot_operator.api.modelreplica import Spec
from flashboot_operator.core.workload import pod_template
from kit import tools
from kit.errors import KitError
from kit.kubectl import Kubectl, run
from tests.component.controlplane.apiserver import ApiError, ApiServer
from tests.component.controlplane.test_crd import model_replica, path

pytestmark = pytest.mark.apiserver

CHART = Path(__file__).resolve().parents[3] / "charts" / "flashboot"
Object = dict[str, Any]
SPEC: Object = {
    "model": {"name": "org/model", "revision": "abc"},
    "transfer": {"onMismatch": "LoadFromCheckpoint", "cloneTimeoutSeconds": 90},
}
PROBE: Object = {"httpGet": {"path": "/mine", "port": 1}}


@pytest.fixture(scope="module")
def policy(api: ApiServer) -> Iterator[None]:
    """The policy is there; that it is in effect takes a moment more."""
    try:
        helm, kubectl = str(tools.find("helm")), Kubectl(tools.find("kubectl"), api.kubeconfig)
    except KitError as missing:
        pytest.skip(str(missing))
    flags = ["--set", "injection.enabled=true", "-s", "templates/injection.yaml", "--kube-version=1.36.3"]
    made = run([helm, "template", "fb", str(CHART), *flags])
    kubectl("apply", "--server-side", "--validate=strict", "-f", "-", stdin=made)
    yield
    kubectl("delete", "-f", "-", stdin=made)


def pod(**more: Any) -> Object:
    """`more`: of its engine's container."""
    engine = {"name": "engine", "image": "x", "args": ["serve"], **more}
    spec = {"containers": [{"name": "sidecar", "image": "s"}, engine], "automountServiceAccountToken": False}
    return {"metadata": {"name": "p", "labels": {"flashboot.io/model-replica": "m", "app": "x"}}, "spec": spec}


def admitted(api: ApiServer, namespace: str, body: Object) -> Object:
    made: Object = api.call("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", body)
    return made


@pytest.fixture
def adopting(api: ApiServer, namespace: str, policy: None) -> str:
    """A namespace whose ModelReplica adopts; the policy is in effect there."""
    api.create(path(namespace), model_replica(template=None, replicas=None, **SPEC))
    api.create(path(namespace), model_replica(name="other", template=None, replicas=None))
    end = time.monotonic() + 30
    while "flashboot" not in json.dumps(admitted(api, namespace, pod())["spec"]):
        assert time.monotonic() < end, "the policy is not in effect"
        time.sleep(0.05)  # between two looks
    return namespace


def until_refused(api: ApiServer, namespace: str, body: Object, why: str) -> None:
    """The API server hears of policies and of their ModelReplicas by watches."""
    end, last = time.monotonic() + 30, "it was admitted"
    while time.monotonic() < end:
        try:
            admitted(api, namespace, body)
        except ApiError as refusal:
            last = str(refusal)
            if why in last:
                return
        time.sleep(0.05)  # between two looks
    raise AssertionError(f"never refused for {why}: {last}")


@pytest.mark.parametrize(
    ("engine", "pod_spec"),
    [
        ({}, {}),
        ({"args": ["--port=31000"]}, {}),
        ({"command": ["serve", "--port", "32000"]}, {"terminationGracePeriodSeconds": 90}),
        ({"readinessProbe": PROBE}, {"volumes": [{"name": "mine", "emptyDir": {}}]}),
        ({"env": [{"name": "FLASHBOOT_GRACE_SECONDS", "value": "7"}, {"name": "A", "value": "b"}]}, {}),
        ({"lifecycle": {"preStop": {"sleep": {"seconds": 4}}}, "volumeMounts": [{"name": "m", "mountPath": "/m"}]}, {}),
    ],
)
def test_a_labelled_pod_is_as_the_operator_would_make_it(
    api: ApiServer, adopting: str, engine: Object, pod_spec: Object
) -> None:
    body = pod(**engine)
    body["spec"] |= pod_spec
    if "volumeMounts" in engine:
        body["spec"]["volumes"] = [{"name": "m", "emptyDir": {}}]
    template = {"metadata": {"labels": {"app": "x"}}, "spec": copy.deepcopy(body["spec"])}
    ours = pod_template("m", Spec.model_validate({**SPEC, "template": template}))
    unlabelled = {"metadata": {"name": "p", "labels": {"app": "x"}}, "spec": ours["spec"]}
    as_we_make_it, injected = admitted(api, adopting, unlabelled), admitted(api, adopting, body)
    assert injected["spec"] == as_we_make_it["spec"]
    assert injected["metadata"]["labels"] == ours["metadata"]["labels"]


def test_a_pod_that_has_it_all_and_one_without_the_label_stay_as_they_are(api: ApiServer, adopting: str) -> None:
    body = pod()
    once = admitted(api, adopting, body)
    again = admitted(api, adopting, {"metadata": body["metadata"], "spec": once["spec"]})
    assert again["spec"] == once["spec"]
    del body["metadata"]["labels"]["flashboot.io/model-replica"]
    assert "flashboot" not in json.dumps(admitted(api, adopting, body)["spec"])


def test_a_pod_that_would_load_in_silence_is_refused(api: ApiServer, namespace: str, policy: None) -> None:
    until_refused(api, namespace, pod(), "no params")  # no ModelReplica in the namespace
    api.create(path(namespace), model_replica(template=None, replicas=None))
    body = pod()
    del body["spec"]["containers"][1]["args"]
    until_refused(api, namespace, body, "args")
