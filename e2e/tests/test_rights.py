"""The API server's audit log of everything before: nobody of ours was refused, nobody did what the chart does not say.

Runs last (tests run in the order of their files' names).
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from kit.eventually import NotYet, eventually
from kit.kubectl import Kubectl
from kit.world import World
from rack.settings import LOGS

OURS = "system:serviceaccount:flashboot-system:"


def audit() -> list[dict[str, Any]]:
    """Finished requests of our service accounts. The last line may be half written."""
    lines = (LOGS / "audit.log").read_text().splitlines()[:-1]
    entries = [json.loads(line) for line in lines]
    return [entry for entry in entries if entry["user"]["username"].startswith(OURS)]


def test_no_request_of_ours_was_forbidden(world: World) -> None:
    eventually(_audited, "the audit log to tell of our operator", 60)
    forbidden = [entry for entry in audit() if entry.get("responseStatus", {}).get("code") in (401, 403)]
    shown = Counter((entry["user"]["username"], entry["verb"], entry["requestURI"]) for entry in forbidden)
    assert not forbidden, shown.most_common(20)


def _audited() -> None:
    if not audit():
        raise NotYet("no entry yet")


def test_only_the_operator_speaks_to_the_api_server(world: World) -> None:
    assert {entry["user"]["username"] for entry in audit()} == {f"{OURS}flashboot-operator"}


def test_rights_that_nobody_used_are_listed(world: World, record_property: Any) -> None:
    """Not a failure: a rarely used right may be needed. The list is there to be read."""
    used = {(_resource(entry["objectRef"]), entry["verb"]) for entry in audit() if "objectRef" in entry}
    granted = _granted(world.kubectl)
    record_property("unused rights", ", ".join(f"{verb} {resource}" for resource, verb in sorted(granted - used)))
    assert used - granted <= _discovery(used), used - granted


def _discovery(used: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """What every service account may do: ask about itself."""
    return {(resource, verb) for resource, verb in used if resource.startswith("selfsubject")}


def _resource(ref: dict[str, Any]) -> str:
    return f"{ref['resource']}/{ref['subresource']}" if ref.get("subresource") else str(ref["resource"])


def _granted(kubectl: Kubectl) -> set[tuple[str, str]]:
    roles = [
        kubectl.json("get", "clusterrole", "flashboot-operator"),
        kubectl.json("get", "role", "flashboot-operator", "-n", "flashboot-system"),
    ]
    return {
        (resource, verb)
        for role in roles
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
