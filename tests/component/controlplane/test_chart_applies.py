"""A real API server takes everything that the chart renders, field by field, and the examples too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from flashboot_agent.wire.base import now
from flashboot_operator.kube.authority import AuthorityStore
from flashboot_operator.kube.client import Kube, load_configuration
from kit import tools
from kit.errors import CommandFailed, KitError
from kit.kubectl import Kubectl, run
from tests.component.controlplane import identities
from tests.component.controlplane.apiserver import ApiServer

ROOT = Path(__file__).resolve().parents[3]
STRICT = ("--server-side", "--validate=strict", "--force-conflicts", "--field-manager=test")

pytestmark = pytest.mark.apiserver


@pytest.fixture(scope="module")
def kubectl(api: ApiServer) -> Kubectl:
    try:
        return Kubectl(tools.find("kubectl"), api.kubeconfig)
    except KitError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def rendered() -> str:
    try:
        helm = tools.find("helm")
    except KitError as missing:
        pytest.skip(str(missing))
    chart = str(ROOT / "charts" / "flashboot")
    return run([str(helm), "template", "fb", chart, "-n", "flashboot-chart", "--kube-version=1.36.3"])


def test_every_object_of_the_chart_is_accepted(kubectl: Kubectl, rendered: str) -> None:
    kubectl("create", "namespace", "flashboot-chart")
    said = kubectl("apply", *STRICT, "-f", "-", stdin=rendered)
    assert "daemonset.apps/flashboot-door serverside-applied" in said
    assert "csidriver.storage.k8s.io/csi.flashboot.io serverside-applied" in said


def test_the_operator_pod_fits_a_restricted_namespace(kubectl: Kubectl) -> None:
    """As Pod Security itself judges: a warning names each field that breaks the standard."""
    template = kubectl.json("get", "deployment", "flashboot-operator", "-n", "flashboot-chart")["spec"]["template"]
    kubectl("create", "namespace", "restricted-check")
    kubectl("label", "namespace", "restricted-check", "pod-security.kubernetes.io/enforce=restricted")
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "operator", "namespace": "restricted-check"},
        "spec": {key: value for key, value in template["spec"].items() if key != "serviceAccountName"},
    }
    kubectl.apply(json.dumps(pod))


def test_examples_are_accepted_as_they_are(kubectl: Kubectl) -> None:
    names = ("modelreplica.yaml", "hpa.yaml", "hpa-sglang.yaml")
    said = [kubectl("apply", *STRICT, "-f", str(ROOT / "examples" / name)) for name in names]
    assert "modelreplica.flashboot.io/qwen3-moe serverside-applied" in said[0]
    for each in said[1:]:
        assert "horizontalpodautoscaler.autoscaling/qwen3-moe serverside-applied" in each


def test_what_kubernetes_knows_of_the_keda_example_is_accepted(kubectl: Kubectl) -> None:
    """KEDA's own type is not here; what it makes of it, an HPA, is checked as far as it is written there."""
    example = ROOT / "examples" / "keda.yaml"
    with pytest.raises(CommandFailed, match='no matches for kind "ScaledObject"'):
        kubectl("apply", *STRICT, "-f", str(example))
    said = yaml.safe_load(example.read_text())["spec"]
    made = yaml.safe_load((ROOT / "examples" / "hpa.yaml").read_text())
    assert said["scaleTargetRef"] == made["spec"]["scaleTargetRef"]
    made["metadata"]["name"] = "keda-hpa-qwen3-moe"
    made["spec"] |= {"maxReplicas": said["maxReplicaCount"], **said["advanced"]["horizontalPodAutoscalerConfig"]}
    kubectl("apply", *STRICT, "--dry-run=server", "-f", "-", stdin=json.dumps(made))


async def test_an_upgrade_and_an_uninstall_leave_the_ca_alone(api: ApiServer, kubectl: Kubectl) -> None:
    """The real helm, and the operator's own code in between."""
    helm, chart, namespace = str(tools.find("helm")), str(ROOT / "charts" / "flashboot"), "flashboot-upgrade"
    flags = ["-n", namespace, "--kubeconfig", str(api.kubeconfig), "--set", "crds.enabled=false"]
    owned = [*flags, "--take-ownership"]  # cluster-wide names that the other tests have used
    kubectl("create", "namespace", namespace)
    run([helm, "install", "fb", chart, *owned])
    kube = Kube(await load_configuration(str(api.kubeconfig)), timeout_s=10)
    try:
        made = (await AuthorityStore(kube, namespace).load(now())).bundle
        run([helm, "upgrade", "fb", chart, *owned, "--set", "operator.logLevel=debug", "--set", "image.tag=other"])
        assert identities.ca(api, namespace) == made
        run([helm, "uninstall", "fb", "-n", namespace, "--kubeconfig", str(api.kubeconfig)])
        run([helm, "install", "fb", chart, *flags])
        assert identities.ca(api, namespace) == made
        assert (await AuthorityStore(kube, namespace).load(now())).bundle == made
    finally:
        await kube.close()
        run([helm, "uninstall", "fb", "-n", namespace, "--kubeconfig", str(api.kubeconfig)])
