"""What the pydantic models accept, the API server accepts, and the other way round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from flashboot_operator.api.modelreplica import Spec
from tests.component.controlplane.apiserver import ApiError, ApiServer
from tests.component.controlplane.test_crd import path

pytestmark = pytest.mark.apiserver


def near(low: int, high: int) -> st.SearchStrategy[int]:
    """Numbers on both sides of both bounds, mostly inside, so that a whole spec has a chance."""
    return st.sampled_from([*[low] * 8, *[high] * 8, low - 1, high + 1])


odd = st.text(st.sampled_from("aZ9./_@:+- \n#é"), max_size=6) | st.sampled_from(["a" * 129, "a" * 513])
good = st.sampled_from(["org/m", "/models/x", "a:b@c+d-e_f.g/H"])
names = st.integers(0, 11).flatmap(lambda n: odd if n == 7 else good)
revisions = st.integers(0, 11).flatmap(lambda n: odd if n == 7 else st.just("8f3c0e"))
GOOD: dict[str, list[Any]] = {
    "image": ["x"],
    "env": [
        [],
        [{"name": "A", "value": "1"}],
        [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
    ],
    "envFrom": [[{"secretRef": {"name": "s"}}]],
    "ports": [[{"containerPort": 1}]],
    "resources": [{}, {"limits": {"cpu": 0.5, "memory": "1Gi", "nvidia.com/gpu": 1}, "claims": [{"name": "c"}]}],
    "volumeMounts": [[{"name": "v", "mountPath": "/v", "readOnly": True}]],
    "lifecycle": [{"preStop": {"sleep": {"seconds": 5}}}, {"preStop": {"exec": {"command": ["x"]}}}],
    "securityContext": [{"runAsUser": 1}],
    "workingDir": ["/"],
}
BAD: dict[str, list[Any]] = {
    "image": [1],
    "command": ["x", [1]],
    "env": [{"A": "1"}, [{"name": "A", "value": 1}], [{"name": "A", "value": True}], [{"value": "1"}], ["A=1"]],
    "envFrom": [{"secretRef": {}}, ["s"]],
    "ports": [[80], {"containerPort": 1}],
    "resources": [{"limits": ["cpu"]}, {"requests": "1Gi"}, []],
    "volumeMounts": [[{"name": "v"}], [{"mountPath": "/v"}], {"v": "/v"}],
    "lifecycle": [{"preStop": {"sleep": {"seconds": "5"}}}, {"preStop": {"sleep": {"seconds": 0.5}}}, []],
    "securityContext": [[]],
}
GOOD_POD: dict[str, list[Any]] = {
    "initContainers": [[{"name": "i", "image": "x"}]],
    "volumes": [[{"name": "v", "emptyDir": {}}]],
    "nodeSelector": [{"a": "b"}],
    "tolerations": [[{"operator": "Exists"}]],
    "affinity": [{"nodeAffinity": {}}],
    "topologySpreadConstraints": [[{"maxSkew": 1}]],
    "imagePullSecrets": [[{"name": "s"}]],
    "serviceAccountName": ["a"],
    "terminationGracePeriodSeconds": [30],
    "hostNetwork": [True],
}
BAD_POD: dict[str, list[Any]] = {
    "initContainers": [[{"image": "x"}], {}],
    "volumes": [[{"emptyDir": {}}], {"v": {}}],
    "nodeSelector": [{"a": 1}, {"a": True}, ["a"]],
    "tolerations": [{"operator": "Exists"}],
    "affinity": [[]],
    "topologySpreadConstraints": [{}],
    "imagePullSecrets": [["s"]],
    "serviceAccountName": [1],
    "terminationGracePeriodSeconds": ["30", 0.5],
}


def _values(good: list[Any], bad: list[Any], n: int) -> st.SearchStrategy[Any]:
    return st.sampled_from(bad if n == 7 else good)


def fields(good: dict[str, list[Any]], bad: dict[str, list[Any]]) -> dict[str, st.SearchStrategy[Any]]:
    """Most of what they make is good, so that a whole template has a chance."""
    return {name: st.integers(0, 11).flatmap(partial(_values, good[name], bad.get(name, good[name]))) for name in good}


def each(good: dict[str, list[Any]], *, taken: bool, engine: bool) -> list[tuple[dict[str, Any], bool]]:
    """A pod for each of the values, and whether it is taken."""
    parts = [{name: value} for name, values in good.items() for value in values]
    return [({"containers": [{"name": "e"} | (x if engine else {})]} | ({} if engine else x), taken) for x in parts]


@pytest.mark.parametrize(
    ("pod", "taken"),
    [
        *each(GOOD, taken=True, engine=True),
        *each(BAD, taken=False, engine=True),
        *each(GOOD_POD, taken=True, engine=False),
        *each(BAD_POD, taken=False, engine=False),
    ],
    ids=str,
)
def test_what_is_written_most_in_a_pod_is_typed_by_both(
    api: ApiServer, somewhere: str, pod: dict[str, Any], taken: bool
) -> None:
    assert accepted(api, somewhere, {"model": {"name": "m", "revision": "r"}, "template": {"spec": pod}}) == taken


container = st.fixed_dictionaries({"name": st.just("engine")}, optional=fields(GOOD, BAD))
containers = st.integers(0, 7).flatmap(lambda n: st.just([]) if n == 5 else st.lists(container, min_size=1, max_size=1))
pods = st.fixed_dictionaries({"containers": containers}, optional=fields(GOOD_POD, BAD_POD))
template = st.fixed_dictionaries({"spec": pods})
specs = st.fixed_dictionaries(
    {"model": st.fixed_dictionaries({"name": names, "revision": revisions})},
    optional={
        "replicas": near(0, 4096),
        "template": template,
        "group": st.fixed_dictionaries({"size": st.sampled_from([1, 1, 1, 2, 2, 3, 64, 0, 1025])}),
        "parallelism": st.fixed_dictionaries(
            {}, optional={"tensor": near(1, 64), "pipeline": near(1, 2), "expert": st.sampled_from([1, 1, 2, 3, 64])}
        ),
        "transfer": st.fixed_dictionaries(
            {},
            optional={
                "domainPolicy": st.sampled_from(["Any", "PreferSame", "RequireSame"] * 3 + ["None"]),
                "sourceEgressPercent": near(1, 100),
                "cloneTimeoutSeconds": near(1, 3600),
                "onMismatch": st.sampled_from(["Fail", "LoadFromCheckpoint"] * 4 + [""]),
            },
        ),
        "residency": st.fixed_dictionaries({}, optional={"hostCopies": near(0, 64), "hostTTLSeconds": near(0, 604800)}),
        "rollout": st.fixed_dictionaries({}, optional={"maxSurge": near(0, 4096), "maxUnavailable": near(0, 4096)}),
    },
)


seen: Counter[str] = Counter()


@pytest.fixture(scope="module")
def somewhere(api: ApiServer) -> Iterator[str]:
    api.create("/api/v1/namespaces", {"metadata": {"name": "same-rules"}})
    yield "same-rules"
    assert min(seen["accepted"], seen["refused"]) >= 5, f"both sides have to be tried: {seen}"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spec=specs)
def test_both_accept_the_same(api: ApiServer, somewhere: str, spec: dict[str, Any]) -> None:
    accepted(api, somewhere, spec)


def accepted(api: ApiServer, somewhere: str, spec: dict[str, Any]) -> bool:
    """By both, or by none of them."""
    body = {
        "apiVersion": "flashboot.io/v1alpha1",
        "kind": "ModelReplica",
        "metadata": {"name": "m"},
        "spec": spec,
    }
    try:
        stored = api.call("POST", path(somewhere) + "?dryRun=All", body)["spec"]
    except ApiError as error:
        if error.code != 422:
            raise
        seen["refused"] += 1
        with pytest.raises(ValidationError):
            Spec.model_validate(spec)
        return False
    seen["accepted"] += 1
    assert Spec.model_validate(spec) == Spec.model_validate(stored), "the defaults are the same too"
    return True
