"""`flashboot tree NAME`: who feeds whom now, rank by rank and lane by lane, how far and how fast, and who does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from flashboot_operator.api.live import LaneTree, Member, RankTrees, Trees
from flashboot_operator.cli.drawing import draw
from flashboot_operator.cli.output import Output, OutputOption, emit, table
from flashboot_operator.cli.reach import (
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    Reach,
    SystemOption,
    UrlOption,
)
from flashboot_operator.cli.units import show_age, show_rate, show_size


def command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="the ModelReplica")],
    *,
    namespace: NamespaceOption = None,
    rank: Annotated[str | None, typer.Option("--rank", metavar="RANK", help="this one alone, as in tp1")] = None,
    output: OutputOption = Output.TABLE,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    system: SystemOption = "flashboot-system",
    url: UrlOption = None,
) -> int:
    """Draw who feeds whom now, rank by rank and lane by lane."""
    reach = Reach(kubeconfig, context, system, url)
    path = f"/v1/modelreplicas/{namespace or reach.namespace()}/{name}/trees"
    trees = reach.ask(Trees, path, {} if rank is None else {"rank": rank})
    if rank is not None and not trees.ranks:
        raise ValueError(f"--rank {rank}: {name} has no arena of such a rank; without --rank all are shown")
    emit(output, trees.model_dump(by_alias=True, mode="json"), _text(trees))
    return 0


def _text(trees: Trees) -> list[str]:
    lines: list[str] = []
    for rank in trees.ranks:
        lines += [*([""] if lines else []), *_rank(rank, trees)]
    return lines or [f"{trees.namespace}/{trees.name} has no arena, and no pod that needs one"]


def _rank(rank: RankTrees, trees: Trees) -> list[str]:
    lines = [f"rank {rank.rank}   {show_size(rank.bytes) if rank.bytes else 'size not known yet'}   {_origin(rank)}"]
    for number, lane in enumerate(rank.lanes):
        if number and lane.edges == rank.lanes[0].edges:
            lines.append(f"lane {number}: as lane 0")
        elif lane.edges:
            lines += [f"lane {number}", *(f"  {line}" for line in _lane(lane))]
    heads = ["NODE", "STATE", "DONE", "RATE", "SINCE", "OVER", "PODS", "NOTES"]
    return [*lines, "", *table(heads, [_member(m, rank, trees) for m in rank.members])]


def _origin(rank: RankTrees) -> str:
    if rank.sources:
        return "from " + ", ".join(f"{s.node} ({s.reason}, {s.domain})" for s in rank.sources)
    if rank.seed_pod is not None:
        return f"pod {rank.seed_pod} on {rank.seed_node} loads the checkpoint as the seed"
    return "nobody has it, and no pod can load it yet"


def _lane(lane: LaneTree) -> list[str]:
    edges, roots = forest(lane)
    notes = {
        node: f"({_percent(e.watermark, lane.bytes)}{_more(e.planned, e.starved)})" for node, e in lane.edges.items()
    }
    waiting = [node for node, edge in lane.edges.items() if edge.parent is None]
    lines = draw(edges, roots, notes)
    return [*lines, *([f"waiting for a parent: {', '.join(sorted(waiting))}"] if waiting else [])]


def forest(lane: LaneTree) -> tuple[Mapping[str, str], list[str]]:
    """Edges without circles, and the nodes at the top. What nodes say is of different moments, and two may name each
    other for a while: the edge that closes a circle is left out."""
    edges: dict[str, str] = {}
    for child, edge in sorted(lane.edges.items()):
        at: str | None = edge.parent
        while at is not None and at != child:
            at = edges.get(at)
        if edge.parent is not None and at is None:
            edges[child] = edge.parent
    return edges, sorted(set(edges.values()) - edges.keys())


def _more(planned: str | None, starved: bool) -> str:
    return (f", moves to {planned}" if planned else "") + (", waits for its parent" if starved else "")


def _member(m: Member, rank: RankTrees, trees: Trees) -> list[str]:
    marks = [word for word, holds in (("slow", m.slow), ("quarantined", m.quarantined)) if holds]
    over = f"{m.transport}: {m.transport_reason}" if m.transport and m.transport_reason else m.transport or ""
    return [
        m.node,
        m.state,
        _percent(m.watermark, rank.bytes) if rank.bytes else "",
        show_rate(m.bytes_per_second) if m.bytes_per_second else "",
        show_age((trees.at - m.since).total_seconds()) if m.since else "",
        over,
        ", ".join(m.pods),
        "; ".join([*marks, *m.notes]),
    ]


def _percent(part: int, whole: int) -> str:
    return f"{part * 100 // whole} %" if whole else "0 %"
