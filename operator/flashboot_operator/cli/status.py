"""`flashboot status`: how ModelReplicas are, all of them in a table, or one with everything that is known of it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from flashboot_operator.api.live import Listing, ReplicaView, Summary
from flashboot_operator.cli.output import Output, OutputOption, emit, table
from flashboot_operator.cli.reach import (
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    Reach,
    SystemOption,
    UrlOption,
)
from flashboot_operator.cli.units import show_age, show_size

MOST_LINES = 40
"""Replicas that are told of one by one; -o json has all of them."""


def command(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="one ModelReplica, in detail")] = None,
    *,
    namespace: NamespaceOption = None,
    everywhere: Annotated[bool, typer.Option("--all-namespaces", "-A", help="list those of all namespaces")] = False,
    output: OutputOption = Output.TABLE,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    system: SystemOption = "flashboot-system",
    url: UrlOption = None,
) -> int:
    """Say how ModelReplicas are: all in a table, or one in detail."""
    if everywhere and (name is not None or namespace is not None):
        raise ValueError("-A lists all namespaces: leave out NAME and -n")
    reach = Reach(kubeconfig, context, system, url)
    where = None if everywhere else namespace or reach.namespace()
    if name is not None:
        one = reach.ask(ReplicaView, f"/v1/modelreplicas/{where}/{name}")
        emit(output, one.model_dump(by_alias=True, mode="json"), _detail(one))
        return 0
    items = list(_all(reach, where))
    document = Listing(items=items).model_dump(by_alias=True, mode="json", exclude={"after"})
    emit(output, document, _lines(items, everywhere, where))
    return 0


def _all(reach: Reach, namespace: str | None) -> Iterator[Summary]:
    query = {} if namespace is None else {"namespace": namespace}
    while True:
        page = reach.ask(Listing, "/v1/modelreplicas", query)
        yield from page.items
        if page.after is None:
            return
        query = {**query, "after": page.after}


def _lines(items: list[Summary], everywhere: bool, namespace: str | None) -> list[str]:
    if not items:
        return [f"no ModelReplicas in {'any namespace' if everywhere else f'namespace {namespace}'}"]
    heads = ["NAME", "MODEL", "DESIRED", "READY", "STATE", "SOURCE", "DOMAIN", "SINCE"]
    rows = [
        [i.name, i.model, _number(i.desired), str(i.ready), i.state, i.source or "", i.domain or "", _since(i.since)]
        for i in items
    ]
    if everywhere:
        heads, rows = ["NAMESPACE", *heads], [[i.namespace, *row] for i, row in zip(items, rows, strict=True)]
    return table(heads, rows)


def _detail(one: ReplicaView) -> list[str]:
    status = one.status
    model = one.model
    lines = [
        f"{one.namespace}/{one.name}   {model.get('name')} at {model.get('revision')}",
        f"replicas   {_number(one.replicas) or '-'} wanted, {status.get('replicas', 0)} there, "
        f"{status.get('readyReplicas', 0)} ready, {status.get('updatedReplicas', 0)} of the present template",
        *_conditions(status),
        *_sources(status),
        *_clone(status.get("lastClone")),
    ]
    if one.progress:
        shown = one.progress[:MOST_LINES]
        lines += ["", *table(["POD", "STAGE", "WHAT IT DOES"], [[p.pod, p.stage, p.trouble or p.text] for p in shown])]
    if len(one.progress) > MOST_LINES:
        lines.append(f"… and {len(one.progress) - MOST_LINES} more; -o json has all")
    silent = [
        f"{n} ({node.agent_silent_seconds:.0f} s)"
        for n, node in one.nodes.items()
        if (node.agent_silent_seconds or 0) > 3
    ]
    return [*lines, *([f"agents that do not answer: {', '.join(silent)}"] if silent else [])]


def _conditions(status: dict[str, Any]) -> list[str]:
    rows = [
        [c["type"], c["status"], c["reason"], _since(c.get("lastTransitionTime")), c.get("message", "")]
        for c in status.get("conditions") or []
    ]
    return ["", *table(["CONDITION", "STATUS", "REASON", "SINCE", "MESSAGE"], rows)]


def _sources(status: dict[str, Any]) -> list[str]:
    rows = [
        [d["name"], str(d.get("residentReplicas", 0)), d.get("source") or "", d.get("sourceReason") or ""]
        for d in status.get("domains") or []
    ]
    return ["", *table(["DOMAIN", "RESIDENT", "SOURCE", "WHY"], rows)] if rows else []


def _clone(last: dict[str, Any] | None) -> list[str]:
    if not last:
        return []
    replicas = f"{last['replicas']} replica{'s' if last['replicas'] > 1 else ''}"
    return [
        "",
        f"last clone   {replicas}, {show_size(last['bytes'])} each over {last['path']}, "
        f"{last['cloneMilliseconds'] / 1000:.1f} s for the bytes, {last['apiReadyMilliseconds'] / 1000:.1f} s until "
        f"the API was ready, at {last['completedAt']}",
    ]


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _since(text: str | None) -> str:
    if not text:
        return ""
    return show_age((datetime.now(UTC) - datetime.fromisoformat(text.replace("Z", "+00:00"))).total_seconds())
