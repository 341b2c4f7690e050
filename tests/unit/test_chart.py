"""The chart: what it renders, what it refuses, and that nobody gets more rights than the design gives."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from flashboot_agent.node.settings import Settings
from flashboot_agent.wire.trust import AUDIENCE
from kit import tools
from kit.errors import KitError

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "flashboot"
DIGEST = "sha256:" + "0123456789abcdef" * 4

Objects = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture(scope="session")
def helm() -> Path:
    try:
        return tools.find("helm")
    except KitError as missing:
        pytest.skip(str(missing))


def run(helm: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(helm), *arguments], capture_output=True, text=True, check=False, timeout=60)


def render(helm: Path, **values: object) -> Objects:
    """(kind, name) → object."""
    sets = [f"--set-json={key}={json.dumps(value)}" for key, value in values.items()]
    done = run(helm, "template", "fb", str(CHART), "-n", "flashboot-system", "--kube-version=1.36.3", *sets)
    assert done.returncode == 0, done.stderr
    documents = [document for document in yaml.safe_load_all(done.stdout) if document]
    return {(document["kind"], document["metadata"]["name"]): document for document in documents}


@pytest.fixture(scope="session")
def objects(helm: Path) -> Objects:
    return render(helm)


def pod_specs(objects: Objects) -> dict[str, dict[str, Any]]:
    """Part → pod spec."""
    return {
        name.removeprefix("flashboot-"): item["spec"]["template"]["spec"]
        for (kind, name), item in objects.items()
        if kind in ("Deployment", "DaemonSet")
    }


def test_lint_is_clean(helm: Path) -> None:
    done = run(helm, "lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout


def test_renders_the_four_parts_and_the_driver(objects: Objects) -> None:
    assert objects.keys() >= {
        ("Deployment", "flashboot-operator"),
        ("DaemonSet", "flashboot-agent"),
        ("DaemonSet", "flashboot-holder"),
        ("DaemonSet", "flashboot-door"),
        ("CSIDriver", "csi.flashboot.io"),
    }
    namespaced = {item["metadata"]["namespace"] for item in objects.values() if "namespace" in item["metadata"]}
    assert namespaced == {"flashboot-system"}


def test_crds_in_the_chart_equal_crds(objects: Objects) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "charts" / "sync_crds.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    sources = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "crds").glob("*.yaml"))]
    assert sources, "crds/ is empty"
    for source in sources:
        rendered = objects["CustomResourceDefinition", source["metadata"]["name"]]
        assert rendered["metadata"]["annotations"].pop("helm.sh/resource-policy") == "keep"
        assert rendered["spec"] == source["spec"]


def test_crds_can_be_left_out_or_not_kept(helm: Path) -> None:
    def crds(**values: object) -> list[dict[str, Any]]:
        rendered = render(helm, **values)
        return [item for (kind, _), item in rendered.items() if kind == "CustomResourceDefinition"]

    assert crds(**{"crds.enabled": False}) == []
    given_up = crds(**{"crds.keep": False})
    assert given_up
    assert all("helm.sh/resource-policy" not in crd["metadata"].get("annotations", {}) for crd in given_up)


def test_pods_of_other_workloads_are_left_alone_unless_asked(helm: Path, objects: Objects) -> None:
    names = {
        ("MutatingAdmissionPolicy", "flashboot-injection"),
        ("MutatingAdmissionPolicyBinding", "flashboot-injection"),
    }
    assert not names & objects.keys()
    assert names <= render(helm, **{"injection.enabled": True}).keys()


def test_rights_have_no_wildcards_and_one_secret(objects: Objects) -> None:
    rules = [rule for (kind, _), item in objects.items() if kind in ("ClusterRole", "Role") for rule in item["rules"]]
    assert rules
    for rule in rules:
        words = [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        assert "*" not in "".join(words), rule
        if "secrets" in rule["resources"] or "configmaps" in rule["resources"]:
            assert rule["resourceNames"] == ["flashboot-ca"]
            assert rule["verbs"] == ["get", "update"]


def test_the_cas_places_are_kept_and_never_overwritten(objects: Objects) -> None:
    for kind in ("Secret", "ConfigMap"):
        place = objects[kind, "flashboot-ca"]
        assert place["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
        assert "data" not in place, "an upgrade would take the operator's CA away"


def test_agents_show_a_token_and_know_the_ca(objects: Objects) -> None:
    spec = pod_specs(objects)["agent"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["ca"]["configMap"] == {"name": "flashboot-ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    (source,) = volumes["token"]["projected"]["sources"]
    assert source["serviceAccountToken"] == {"path": "token", "audience": AUDIENCE, "expirationSeconds": 3600}
    (agent,) = spec["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in agent["volumeMounts"]}
    assert Settings.ca_file == Path(mounts["ca"]) / "ca.crt"
    assert Settings.token_file == Path(mounts["token"]) / "token"
    for part in ("holder", "door"):
        assert "token" not in {volume["name"] for volume in pod_specs(objects)[part]["volumes"]}


@pytest.mark.parametrize(("mode", "scheme"), [("mutual", "HTTPS"), ("off", "HTTP")])
def test_tls_is_one_value_for_all_parts(helm: Path, mode: str, scheme: str) -> None:
    rendered = render(helm, **{"tls.mode": mode})
    specs = pod_specs(rendered)
    for part in ("operator", "agent"):
        (container,) = specs[part]["containers"]
        assert {"name": "FLASHBOOT_TLS", "value": mode} in container["env"]
    (agent,) = specs["agent"]["containers"]
    assert {agent[probe]["httpGet"]["scheme"] for probe in ("livenessProbe", "readinessProbe")} == {scheme}
    assert (("Secret", "flashboot-ca") in rendered) == (mode == "mutual")
    assert ("tokenreviews" in str(rendered["ClusterRole", "flashboot-operator"])) == (mode == "mutual")
    assert ("flashboot-ca" in str(rendered)) == (mode == "mutual")


def test_only_the_operator_has_rights_and_a_token(objects: Objects) -> None:
    bound = {
        subject["name"]
        for (kind, _), item in objects.items()
        if kind.endswith("RoleBinding")
        for subject in item["subjects"]
    }
    assert bound == {"flashboot-operator"}
    tokens = {part: spec["automountServiceAccountToken"] for part, spec in pod_specs(objects).items()}
    assert tokens == {"operator": True, "agent": False, "holder": False, "door": False}


@pytest.mark.parametrize("part", ["operator", "agent", "holder"])
def test_unprivileged_parts_are_restricted(objects: Objects, part: str) -> None:
    spec = pod_specs(objects)[part]
    assert not any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC"))
    (container,) = spec["containers"]
    context = container["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] == 65532
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}


def test_the_operator_touches_nothing_of_its_node(objects: Objects) -> None:
    spec = pod_specs(objects)["operator"]
    assert all("hostPath" not in volume for volume in spec["volumes"])
    assert "initContainers" not in spec
    assert objects["Deployment", "flashboot-operator"]["spec"]["strategy"] == {"type": "Recreate"}


def test_root_appears_only_to_hand_folders_over(objects: Objects) -> None:
    for part in ("agent", "holder"):
        (folders,) = pod_specs(objects)[part]["initContainers"]
        assert folders["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
        assert folders["securityContext"]["allowPrivilegeEscalation"] is False


def test_images_have_a_folder_on_the_node_only_when_they_are_wanted(helm: Path, objects: Objects) -> None:
    assert "images" not in str(pod_specs(objects)["agent"])
    specs = pod_specs(
        render(
            helm,
            **{"agent.images.enabled": True, "agent.images.budgetMiB": 100, "agent.images.hostPath": "/data/x"},
        )
    )
    spec = specs["agent"]
    (volume,) = [volume for volume in spec["volumes"] if volume["name"] == "images"]
    assert volume["hostPath"] == {"path": "/data/x", "type": "DirectoryOrCreate"}
    (agent,), (folders,) = spec["containers"], spec["initContainers"]
    environment = {variable["name"]: variable.get("value") for variable in agent["env"]}
    assert environment["FLASHBOOT_IMAGES_BUDGET_BYTES"] == str(100 << 20)
    assert environment["FLASHBOOT_IMAGES_BYTES_PER_SECOND"] == str(200 << 20)
    for container in (agent, folders):
        assert {"name": "images", "mountPath": "/var/lib/flashboot/images"} in container["volumeMounts"]
    assert folders["command"][-1].endswith("chown 65532:65532 holder agent /var/lib/flashboot/images")
    assert "images" not in str(specs["holder"])


def test_updates_have_a_folder_on_the_nodes_disk_when_one_is_named(helm: Path, objects: Objects) -> None:
    assert "updates" not in str(pod_specs(objects)["agent"])
    specs = pod_specs(render(helm, **{"agent.updates.hostPath": "/data/updates"}))
    spec = specs["agent"]
    assert {"name": "updates", "hostPath": {"path": "/data/updates", "type": "DirectoryOrCreate"}} in spec["volumes"]
    (agent,), (folders,) = spec["containers"], spec["initContainers"]
    assert {"name": "FLASHBOOT_UPDATES", "value": "/var/lib/flashboot/updates"} in agent["env"]
    for container in (agent, folders):
        assert {"name": "updates", "mountPath": "/var/lib/flashboot/updates"} in container["volumeMounts"]
    assert folders["command"][-1].endswith("chown 65532:65532 holder agent /var/lib/flashboot/updates")
    assert "updates" not in str(specs["holder"])


def test_only_the_door_is_privileged_and_shares_mounts(objects: Objects) -> None:
    privileged, propagating = [], []
    for part, spec in pod_specs(objects).items():
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            if container["securityContext"].get("privileged"):
                privileged.append(part)
            propagating += [
                (part, mount["name"]) for mount in container["volumeMounts"] if mount.get("mountPropagation")
            ]
    assert privileged == ["door"]
    assert propagating == [("door", "kubelet")]
    (door,) = pod_specs(objects)["door"]["containers"]
    assert "ports" not in door


def test_a_roll_of_the_door_surges_and_one_of_the_holder_waits_for_people(objects: Objects) -> None:
    door = objects["DaemonSet", "flashboot-door"]["spec"]
    assert door["updateStrategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert door["minReadySeconds"] == 4
    assert objects["DaemonSet", "flashboot-holder"]["spec"]["updateStrategy"] == {"type": "OnDelete"}


def test_the_holder_asks_for_what_it_gives(helm: Path) -> None:
    (holder,) = pod_specs(render(helm, **{"holder.budgetMiB": 1048576, "holder.overheadMiB": 64}))["holder"][
        "containers"
    ]
    assert holder["resources"]["limits"]["memory"] == "1048640Mi"
    assert holder["resources"]["requests"]["memory"] == "1048640Mi"
    budget = next(item["value"] for item in holder["env"] if item["name"] == "FLASHBOOT_BUDGET_BYTES")
    assert int(budget) == 1048576 << 20


def test_the_driver_is_told_of_pods_and_nothing_is_attached(objects: Objects) -> None:
    assert objects["CSIDriver", "csi.flashboot.io"]["spec"] == {
        "attachRequired": False,
        "podInfoOnMount": True,
        "fsGroupPolicy": "None",
        "volumeLifecycleModes": ["Ephemeral"],
    }


def test_images_come_by_tag_or_by_digest(helm: Path) -> None:
    by_tag = pod_specs(render(helm, **{"image.tag": "dev"}))
    assert by_tag["agent"]["containers"][0]["image"] == "docker.io/flashboot/agent:dev"
    parts = ("operator", "agent", "holder", "door")
    pinned = pod_specs(render(helm, **{f"{part}.image.digest": DIGEST for part in parts}))
    for part, spec in pinned.items():
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            assert container["image"].endswith(f"@{DIGEST}"), part


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("operator.replicas=2", "replicas"),
        ("holder.budgetMib=5", "budgetMib"),
        ("holder.budgetMiB=1Gi", "budgetMiB"),
        ("holder.budgetMiB=1", "budgetMiB"),
        ("agent.image.digest=sha256:short", "digest"),
        ("agent.images.enabled=perhaps", "enabled"),
        ("agent.images.hostPath=images", "hostPath"),
        ("agent.images.budget=1", "budget"),
        ("agent.updates.hostPath=here", "hostPath"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("operator.logLevel=loud", "logLevel"),
        ("tls.mode=on", "mode"),
        ("foo=1", "foo"),
    ],
)
def test_unknown_and_wrong_values_are_refused_by_name(helm: Path, value: str, named: str) -> None:
    done = run(helm, "template", "fb", str(CHART), "--set", value)
    assert done.returncode != 0
    assert named in done.stderr


def test_every_value_is_explained() -> None:
    """values.yaml is the documentation: each key of the schema is in it, and no other."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def walk(schema: dict[str, Any], values: dict[str, Any], path: str) -> None:
        wanted = schema.get("properties", {}).keys() - {"global"}
        assert wanted == values.keys(), f"values.yaml and its schema differ at {path or 'the top'}"
        for key in wanted:
            if schema["properties"][key].get("properties") and isinstance(values[key], dict) and key != "resources":
                walk(schema["properties"][key], values[key], f"{path}.{key}")

    walk(schema, values, "")


def test_metrics_are_found_by_annotations_or_by_a_service_monitor(helm: Path, objects: Objects) -> None:
    annotations = objects["Service", "flashboot-operator"]["metadata"]["annotations"]
    assert annotations == {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": "9442",
        "prometheus.io/path": "/metrics",
    }
    assert ("ServiceMonitor", "flashboot-operator") not in objects
    labels = {"release": "prometheus"}
    monitored = render(helm, **{"metrics.serviceMonitor.enabled": True, "metrics.serviceMonitor.labels": labels})
    assert "annotations" not in monitored["Service", "flashboot-operator"]["metadata"], "or it would be scraped twice"
    monitor = monitored["ServiceMonitor", "flashboot-operator"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    service = monitored["Service", "flashboot-operator"]
    wanted = monitor["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]


def test_a_network_policy_lets_in_who_is_named_and_nobody_else(helm: Path) -> None:
    chosen = {"matchLabels": {"team": "ops"}}
    values = {"networkPolicy.namespaceSelectors": [chosen], "networkPolicy.cidrs": ["10.0.0.0/8"]}
    policy = render(helm, **{"networkPolicy.enabled": True}, **values)["NetworkPolicy", "flashboot-operator"]
    (rule,) = policy["spec"]["ingress"]
    assert rule["from"] == [{"namespaceSelector": chosen}, {"ipBlock": {"cidr": "10.0.0.0/8"}}]
    closed = render(helm, **{"networkPolicy.enabled": True})["NetworkPolicy", "flashboot-operator"]
    assert closed["spec"]["ingress"] == []


def test_people_may_be_given_the_live_views_and_no_more(objects: Objects) -> None:
    assert objects["Role", "flashboot-viewer"]["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["services/proxy"],
            "resourceNames": ["http:flashboot-operator:9442"],
            "verbs": ["get"],
        }
    ]
