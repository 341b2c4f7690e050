"""What a call to the API server is about, in few words: the labels of its metrics. Pure, and bounded by construction:
names and namespaces are left out."""

from __future__ import annotations

from dataclasses import dataclass

OTHER = "other"
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True)
class Call:
    verb: str
    """As in a role: get, list, watch, create, update, patch, delete."""
    resource: str
    """As in a role, with the subresource: `pods`, `modelreplicas/status`; `other` for paths of no resource."""


def call_of(method: str, path: str, *, watch: bool = False) -> Call:
    resource, named = _resource(path)
    if method in _VERBS:
        return Call(_VERBS[method], resource)
    return Call("watch" if watch else "get" if named or resource == OTHER else "list", resource)


def _resource(path: str) -> tuple[str, bool]:
    """And whether the path names one object."""
    parts = path.strip("/").split("/")
    if parts[0] == "api":
        rest = parts[2:]
    elif parts[0] == "apis":
        rest = parts[3:]
    else:
        return OTHER, False
    if len(rest) > 2 and rest[0] == "namespaces":
        rest = rest[2:]
    if not rest:
        return OTHER, False
    return (f"{rest[0]}/{rest[2]}" if len(rest) > 2 else rest[0]), len(rest) > 1
