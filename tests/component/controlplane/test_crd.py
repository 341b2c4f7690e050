"""What the API server makes of our CRD: defaults, bounds, rules with messages, scale, columns, explain."""

from __future__ import annotations

import copy
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.component.controlplane.apiserver import ApiError, ApiServer

pytestmark = pytest.mark.apiserver

Object = dict[str, Any]


def path(namespace: str, name: str = "", sub: str = "") -> str:
    return "/".join(p for p in (f"/apis/flashboot.io/v1alpha1/namespaces/{namespace}/modelreplicas", name, sub) if p)


def model_replica(name: str = "m", **spec: Any) -> Object:
    body: Object = {
        "apiVersion": "flashboot.io/v1alpha1",
        "kind": "ModelReplica",
        "metadata": {"name": name},
        "spec": {
            "replicas": 1,
            "model": {"name": "org/model", "revision": "abc"},
            "template": {
                "spec": {"containers": [{"name": "engine", "image": "sglang:x", "args": ["--port", "30000"]}]}
            },
        },
    }
    body["spec"].update(spec)
    body["spec"] = {k: v for k, v in body["spec"].items() if v is not None}
    return body


def test_defaults_are_filled_in(api: ApiServer, namespace: str) -> None:
    got = api.create(path(namespace), model_replica())
    spec = got["spec"]
    assert spec["group"] == {"size": 1}
    assert spec["parallelism"] == {"tensor": 1, "pipeline": 1, "data": 1, "expert": 1}
    assert spec["transfer"] == {
        "domainPolicy": "PreferSame",
        "sourceEgressPercent": 50,
        "cloneTimeoutSeconds": 60,
        "onMismatch": "Fail",
    }
    assert spec["residency"] == {"hostCopies": 0, "hostTTLSeconds": 3600}
    assert spec["rollout"] == {"maxSurge": 1, "maxUnavailable": 0, "progressDeadlineSeconds": 900}


def test_the_template_keeps_fields_that_the_schema_does_not_name(api: ApiServer, namespace: str) -> None:
    body = model_replica()
    body["spec"]["template"]["spec"] |= {"nodeSelector": {"a": "b"}, "terminationGracePeriodSeconds": 3}
    body["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "4"}}
    got = api.create(path(namespace), body)
    assert got["spec"]["template"] == body["spec"]["template"]


def test_an_empty_field_of_the_template_is_none(api: ApiServer, namespace: str) -> None:
    """As in a Deployment, where `env:` with nothing behind it is no mistake."""
    body = model_replica()
    body["spec"]["template"]["spec"] |= {"nodeSelector": None, "volumes": None}
    body["spec"]["template"]["spec"]["containers"][0] |= {"env": None, "volumeMounts": None, "resources": None}
    assert api.create(path(namespace), body)["spec"]["template"] == model_replica()["spec"]["template"]


TEMPLATE: Object = {"spec": {"containers": [{"name": "engine"}]}}


def engine(**fields: Any) -> Object:
    return {"template": {"spec": {"containers": [{"name": "engine", "image": "x", **fields}]}}}


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"parallelism": {"tensor": 16, "pipeline": 8}}, "spec.parallelism.tensor", "more than 64 ranks per pod"),
        ({"parallelism": {"tensor": 4, "expert": 8}}, "spec.parallelism.expert", "must divide"),
        ({"parallelism": {"tensor": 0}}, "spec.parallelism.tensor", "greater than or equal to 1"),
        ({"group": {"size": 2}}, "spec.group.size", "divided evenly"),
        ({"group": {"size": 3}, "parallelism": {"tensor": 4}}, "spec.group.size", "divided evenly"),
        ({"group": {"size": 0}, "parallelism": {"tensor": 4}}, "spec.group.size", "greater than or equal to 1"),
        ({"replicas": -1}, "spec.replicas", "greater than or equal to 0"),
        ({"replicas": 5000}, "spec.replicas", "less than or equal to 4096"),
        ({"template": None}, "spec.replicas", "adopts pods"),
        ({"template": {"spec": {"containers": []}}}, "spec.template.spec.containers", "at least 1"),
        ({"template": {"spec": {}}}, "spec.template.spec.containers", "Required"),
        ({"template": {}}, "spec.template.spec", "Required"),
        ({"template": {"spec": {"containers": [{"image": "x"}]}}}, "spec.template.spec.containers[0].name", "Required"),
        (engine(env={"A": "1"}), "spec.template.spec.containers[0].env", "must be of type array"),
        (engine(env=[{"name": "A", "value": 1}]), "spec.template.spec.containers[0].env[0].value", "of type string"),
        (
            engine(volumeMounts=[{"name": "v"}]),
            "spec.template.spec.containers[0].volumeMounts[0].mountPath",
            "Required",
        ),
        (engine(resources={"limits": ["cpu"]}), "spec.template.spec.containers[0].resources.limits", "of type object"),
        ({"model": {"name": "org/model"}}, "spec.model.revision", "Required"),
        ({"model": {"name": "", "revision": "x"}}, "spec.model.name", "at least 1"),
        ({"model": {"name": "a b", "revision": "x"}}, "spec.model.name", "should match"),
        ({"model": {"name": "a\n", "revision": "x"}}, "spec.model.name", "should match"),
        ({"model": {"name": "a" * 513, "revision": "x"}}, "spec.model.name", "512"),
        ({"model": None}, "spec.model", "Required"),
        ({"transfer": {"onMismatch": "Ignore"}}, "spec.transfer.onMismatch", "Fail"),
        ({"transfer": {"cloneTimeoutSeconds": 0}}, "spec.transfer.cloneTimeoutSeconds", "greater than or equal to 1"),
        ({"transfer": {"sourceEgressPercent": 101}}, "spec.transfer.sourceEgressPercent", "100"),
        ({"rollout": {"maxSurge": 0}}, "spec.rollout.maxSurge", "cannot both be 0"),
        ({"residency": {"hostCopies": 65}}, "spec.residency.hostCopies", "64"),
    ],
)
def test_a_bad_spec_is_refused_with_its_field(
    api: ApiServer, namespace: str, change: Object, field: str, words: str
) -> None:
    with pytest.raises(ApiError) as caught:
        api.create(path(namespace), model_replica(**change))
    assert caught.value.code == 422
    assert field in caught.value.fields, (caught.value.fields, caught.value.message)
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"model": {"name": "org/other"}}, "spec.model.name", "immutable"),
        ({"parallelism": {"tensor": 2}}, "spec.parallelism", "immutable"),
        ({"group": {"size": 2}}, "spec.group", "immutable"),
        ({"template": None, "replicas": None}, "spec.template", "added or removed"),
    ],
)
def test_a_forbidden_change_is_refused(api: ApiServer, namespace: str, change: Object, field: str, words: str) -> None:
    api.create(path(namespace), model_replica())
    with pytest.raises(ApiError) as caught:
        api.merge(path(namespace, "m"), {"spec": change})
    assert caught.value.code == 422
    assert field in caught.value.fields
    assert words in caught.value.message


def test_another_revision_is_no_forbidden_change(api: ApiServer, namespace: str) -> None:
    api.create(path(namespace), model_replica())
    got = api.merge(path(namespace, "m"), {"spec": {"model": {"revision": "other"}}})
    assert got["spec"]["model"] == {"name": "org/model", "revision": "other"}


def test_a_long_name_is_refused(api: ApiServer, namespace: str) -> None:
    with pytest.raises(ApiError, match="at most 63 characters"):
        api.create(path(namespace), model_replica(name="m" * 64))


def test_an_adopting_object_has_no_scale(api: ApiServer, namespace: str) -> None:
    api.create(path(namespace), model_replica(template=None, replicas=None))
    with pytest.raises(ApiError, match="adopts pods"):
        api.merge(path(namespace, "m"), {"spec": {"replicas": 2}})


def test_scale_reads_and_writes_the_replicas(api: ApiServer, namespace: str) -> None:
    api.create(path(namespace), model_replica())
    selector = "flashboot.io/model-replica=m,flashboot.io/leader=true"
    api.merge(path(namespace, "m", "status"), {"status": {"replicas": 1, "selector": selector}})
    scale = api.call("GET", path(namespace, "m", "scale"))
    assert (scale["spec"], scale["status"]) == ({"replicas": 1}, {"replicas": 1, "selector": selector})
    api.merge(path(namespace, "m", "scale"), {"spec": {"replicas": 4}})
    assert api.call("GET", path(namespace, "m"))["spec"]["replicas"] == 4


def test_status_is_a_subresource_of_its_own(api: ApiServer, namespace: str) -> None:
    body = model_replica()
    body["status"] = {"replicas": 9}
    assert "status" not in api.create(path(namespace), body)
    got = api.merge(path(namespace, "m", "status"), {"spec": {"replicas": 3}, "status": {"readyReplicas": 1}})
    assert (got["spec"]["replicas"], got["status"]["readyReplicas"]) == (1, 1)


def test_the_columns(api: ApiServer, namespace: str) -> None:
    api.create(path(namespace), model_replica())
    crd = api.call("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/modelreplicas.flashboot.io")
    columns = [c["name"] for c in crd["spec"]["versions"][0]["additionalPrinterColumns"]]
    assert columns == ["Model", "Desired", "Ready", "State", "Source", "Domain", "Boot-ms", "Age"]
    assert not [c for c in crd["status"]["conditions"] if c["type"] == "NonStructuralSchema"]


def test_every_field_explains_itself(api: ApiServer) -> None:
    from flashboot_operator.crdgen import model_replica as crd

    def bare(node: Object, where: str) -> list[str]:
        found = (
            []
            if node.get("description") or where.rsplit(".", maxsplit=1)[-1] in ("apiVersion", "kind", "metadata")
            else [where]
        )
        for name, child in node.get("properties", {}).items():
            found += bare(child, f"{where}.{name}")
        if node.get("items", {}).get("type") == "object":
            found += bare({**node["items"], "description": "-"}, where)
        return found

    root = copy.deepcopy(crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    assert bare(root, "modelreplica") == []


def test_kubectl_explain(api: ApiServer, bin_folder: Path) -> None:
    kubectl = bin_folder / "kubectl"
    if not kubectl.exists():
        pytest.skip(f"no kubectl in {bin_folder}")
    done = subprocess.run(
        [kubectl, "--kubeconfig", api.kubeconfig, "explain", "mrep.spec.transfer.onMismatch"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout.split("ENUM:")[1].split()[:2] == ["Fail", "LoadFromCheckpoint"]
    assert "it fails and names what differs" in " ".join(done.stdout.split())
