"""Refuse to start when the API server does not serve our resource, or an older version of it.

An older CRD would drop the fields that it does not know from every status that we write, and "write when different"
would never come to rest. What the server serves is read from its OpenAPI document, which needs no rights.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

from flashboot_operator.api.base import API_VERSION, GROUP, KIND, PLURAL, VERSION
from flashboot_operator.kube.client import Kube, KubeError, NotFound

Schema = dict[str, Any]


class SchemaMismatch(Exception):
    """What is served is not what this operator was made for; the message says what to do."""


class SchemaOutdated(SchemaMismatch):
    """It is served, in an older version."""


def paths(node: Schema, where: str = "") -> Iterator[str]:
    for name, child in (node.get("properties") or {}).items():
        yield f"{where}.{name}"
        yield from paths(child, f"{where}.{name}")
    if "items" in node:
        yield from paths(node["items"], f"{where}[]")


def missing(served: Schema, wanted: Schema) -> list[str]:
    """Fields of `wanted` that `served` does not have."""
    there = set(paths(served))
    return [p for p in paths(wanted) if p not in there and not p.startswith((".metadata", ".apiVersion", ".kind"))]


async def require_served(kube: Kube, wanted: Schema, *, deadline_s: float) -> None:
    """Wait for the API server, up to the deadline; a CRD that was just applied takes a moment to be published.

    Raises:
        SchemaMismatch: not served, or too old.
    """
    end = time.monotonic() + deadline_s
    while True:
        try:
            document = await kube.get(f"/openapi/v3/apis/{GROUP}/{VERSION}")
            problem = _problem(document, wanted)
        except NotFound:
            problem = SchemaMismatch(
                f"the API server does not serve {PLURAL}.{GROUP} {VERSION}: "
                "install the CRDs (`crds/`, or the chart with crds.enabled)"
            )
        except KubeError as error:
            problem = SchemaMismatch(f"the API server does not answer: {error}")
        if problem is None:
            return
        if time.monotonic() > end:
            raise problem
        await asyncio.sleep(0.5)


def _problem(document: Schema, wanted: Schema) -> SchemaMismatch | None:
    for schema in ((document.get("components") or {}).get("schemas") or {}).values():
        kinds = schema.get("x-kubernetes-group-version-kind") or []
        if any(f"{k.get('group')}/{k.get('version')}" == API_VERSION and k.get("kind") == KIND for k in kinds):
            absent = missing(schema, wanted)
            if not absent:
                return None
            shown = ", ".join(absent[:5])
            return SchemaOutdated(
                f"the CRD {PLURAL}.{GROUP} is older than this operator (it lacks {shown}): "
                "apply the CRDs of this version first"
            )
    return SchemaMismatch(f"the API server does not serve {KIND} {API_VERSION}")
