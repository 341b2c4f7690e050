"""Small parts: settings, the schema check, errors of the API server."""

from __future__ import annotations

import copy
import json
from typing import cast

import pytest

from flashboot_operator.core.settings import Settings, from_environment
from flashboot_operator.crdgen import served_schema
from flashboot_operator.kube.client import (
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    Kube,
    KubeError,
    NotFound,
    Unavailable,
    error_of,
)
from flashboot_operator.kube.lease import Lease
from flashboot_operator.kube.schema import missing, paths


def test_settings_come_from_the_environment() -> None:
    assert from_environment({}) == Settings()
    got = from_environment(
        {"POD_NAMESPACE": "a", "FLASHBOOT_NAMESPACE": "b", "FLASHBOOT_AGENT_PORT": "1", "POD_NAME": "p"}
    )
    assert (got.namespace, got.agent_port, got.identity) == ("b", 1, "p")


def test_a_bad_setting_is_named() -> None:
    with pytest.raises(ValueError, match="FLASHBOOT_HTTP_PORT='x': expected int"):
        from_environment({"FLASHBOOT_HTTP_PORT": "x"})
    with pytest.raises(ValueError, match="FLASHBOOT_TLS='on': expected mutual or off"):
        from_environment({"FLASHBOOT_TLS": "on"})
    with pytest.raises(ValueError, match="FLASHBOOT_CERTIFICATE_SECONDS=9: expected 10 or more"):
        from_environment({"FLASHBOOT_CERTIFICATE_SECONDS": "9"})
    with pytest.raises(ValueError, match="FLASHBOOT_RENEW_DEADLINE_SECONDS"):
        from_environment({"FLASHBOOT_LEASE_SECONDS": "5"})


def test_an_older_schema_is_recognised_by_what_it_lacks() -> None:
    wanted = served_schema()
    assert missing(wanted, wanted) == []
    older = copy.deepcopy(wanted)
    del older["properties"]["status"]["properties"]["lastClone"]
    assert missing(older, wanted)[0] == ".status.lastClone"
    newer = copy.deepcopy(wanted)
    newer["properties"]["spec"]["properties"]["more"] = {"type": "string"}
    assert missing(newer, wanted) == []
    assert ".spec.template.spec.containers[].args" in set(paths(wanted))


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, NotFound),
        (409, Conflict),
        (410, Gone),
        (422, Invalid),
        (403, Forbidden),
        (429, Unavailable),
        (503, Unavailable),
    ],
)
def test_errors_are_typed(status: int, kind: type[KubeError]) -> None:
    error = error_of(status, '{"reason": "R", "message": "m"}', "7")
    assert type(error) is kind
    assert (error.reason, error.message, error.retry_after) == ("R", "m", 7.0)
    assert type(error_of(status, "<html>", None)) is kind


def test_a_body_that_cannot_be_applied_is_invalid_though_the_server_says_500() -> None:
    """Server-side apply answers so to a list that has one key twice."""
    said = "failed to create typed patch object (e2e/a; apps/v1, Kind=Deployment): .spec: duplicate entries for key"
    assert type(error_of(500, json.dumps({"message": said}))) is Invalid
    assert type(error_of(500, json.dumps({"message": "failed calling webhook"}))) is Unavailable


async def test_one_broken_agent_cannot_raise_the_epoch_to_where_no_operator_can_follow() -> None:
    kube = cast(Kube, object())  # it is not even asked
    lease = Lease(kube, namespace="n", identity="i", lease_s=15, renew_deadline_s=10, renew_every_s=2)
    with pytest.raises(ValueError, match="is more than"):
        await lease.raise_above((1 << 31) - 2)
    assert lease.epoch == -1
