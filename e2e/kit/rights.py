"""What our service accounts may do, by the chart's roles, beside what they did, by the API server's audit log. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Object = Mapping[str, Any]


@dataclass(frozen=True, order=True)
class Right:
    user: str
    group: str
    """API group, empty for core."""
    resource: str
    """With its subresource: `modelreplicas/status`."""
    verb: str

    def __str__(self) -> str:
        name = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.user.rsplit(':', 1)[-1]}: {self.verb} {name}"


def granted(documents: Iterable[Object]) -> set[Right]:
    """By the roles that are bound to service accounts, among these objects."""
    there = list(documents)
    rules = {(d["kind"], d["metadata"]["name"]): d["rules"] for d in there if d["kind"] in ("Role", "ClusterRole")}
    found = set()
    for binding in (d for d in there if d["kind"] in ("RoleBinding", "ClusterRoleBinding")):
        role = (binding["roleRef"]["kind"], binding["roleRef"]["name"])
        for subject in binding.get("subjects") or ():
            if subject["kind"] == "ServiceAccount":
                user = f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
                found |= {right for rule in rules.get(role, ()) for right in _of_rule(user, rule)}
    return found


def _of_rule(user: str, rule: Object) -> Iterable[Right]:
    for group in rule.get("apiGroups") or ():
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                yield Right(user, group, resource, verb)


def used(entries: Iterable[Object]) -> set[Right]:
    """By these lines of an audit log, refused ones left out. A server-side apply that made its object has used `create`
    too: the API server asks for both, and writes down the patch."""
    found = set()
    for entry in entries:
        ref, code = entry.get("objectRef"), entry.get("responseStatus", {}).get("code", 0)
        if ref is None or code in (401, 403):
            continue
        resource = f"{ref['resource']}/{ref['subresource']}" if ref.get("subresource") else ref["resource"]
        verbs = {entry["verb"], "create"} if entry["verb"] == "patch" and code == 201 else {entry["verb"]}
        found |= {Right(entry["user"]["username"], ref.get("apiGroup", ""), resource, verb) for verb in verbs}
    return found


def report(documents: Iterable[Object], entries: Iterable[Object]) -> str:
    """Rights that nobody used, one a line."""
    unused = granted(documents) - used(entries)
    return "".join(f"{right}\n" for right in sorted(unused))
