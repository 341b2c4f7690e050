"""build/demo/report.json for programs and report.md for people: the same facts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from demo.checks import Check, source_bytes_out
from demo.settings import Settings
from demo.stages import Stage
from demo.timeline import Replica

MIB = 1 << 20


@dataclass(frozen=True)
class Report:
    settings: Settings
    replicas: Sequence[Replica]
    checks: Sequence[Check]
    tokens_equal: bool
    prompts: int
    tokens_each: int
    stages: Sequence[Stage]
    memory: str
    """What the arenas' pages are, in an agent's own words."""

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.json").write_text(json.dumps(self.json(), indent=2) + "\n")
        (folder / "report.md").write_text(self.markdown())

    def json(self) -> dict[str, object]:
        return {
            "replicas": len(self.replicas),
            "tokens_equal": self.tokens_equal,
            "arena_bytes": max(replica.bytes for replica in self.replicas),
            "source_bytes_out": source_bytes_out(self.replicas),
            "per_replica": [replica.json() for replica in self.replicas],
            "prompts": self.prompts,
            "tokens_each": self.tokens_each,
            "memory": self.memory,
            "checks": [{"what": c.what, "passed": c.passed, "found": c.found} for c in self.checks],
            "stages": [
                {"name": s.name, "seconds": None if s.seconds is None else round(s.seconds, 1), "note": s.note}
                for s in self.stages
            ],
        }

    def markdown(self) -> str:
        verdict = "passed" if all(check.passed for check in self.checks) else "FAILED"
        lines = [
            f"# FlashBoot demo: {verdict}",
            "",
            f"`{self.settings.namespace}/{self.settings.name}` went from 1 to {self.settings.replicas} replicas on "
            "a real cluster with real SGLang engines. The first replica loaded the checkpoint; the others cloned its "
            f"arena of {self.replicas[0].bytes / MIB:.1f} MiB from one another. Every replica was asked {self.prompts} "
            f"prompts for {self.tokens_each} greedy tokens each.",
            "",
            "## Checks",
            "",
            *[f"- {'✓' if check.passed else '✗ FAILED:'} {check.what}: {check.found}" for check in self.checks],
            "",
            "## Who fed whom",
            "",
            "```",
            *chain(self.replicas),
            "```",
            "",
            "## Bytes by path",
            "",
            "Every link that carried weights; 1.000 means that the arena crossed it once, and nothing twice.",
            "",
            "| from | to | how | bytes | arenas |",
            "|---|---|---|---|---|",
            *links(self.replicas),
            "",
            "## Replicas",
            "",
            "Seconds since the pod was bound to its node (Kubernetes keeps whole seconds for bound and Ready).",
            "",
            "| pod | node | path | clone started | clone done | engine asked | attached | Ready | MiB/s |",
            "|---|---|---|---|---|---|---|---|---|",
            *[row(replica) for replica in self.replicas],
            "",
            "Clones are complete when the engine asks: they start the moment kubelet mounts the pod's volume, while "
            "Python is still importing.",
            "",
            "## What the engines did",
            "",
            "Seconds, as each engine told its agent. Weights: building the model and attaching, or loading as the "
            "seed. A scheduler's time has the three before it in it. API ready: since the engine's first process "
            "started.",
            "",
            "| pod | weights | KV cache | graphs | scheduler | all processes up | API ready |",
            "|---|---|---|---|---|---|---|",
            *[phases(replica) for replica in self.replicas],
            "",
            f"Arena memory: {self.memory}.",
            "",
            *[f"- {r.node}: {r.transport} ({r.transport_reason})" for r in self.replicas if r.transport],
            "",
            "## What took how long",
            "",
            "| stage | seconds | |",
            "|---|---|---|",
            *[f"| {s.name} | {s.seconds or 0:.1f} | {s.note} |" for s in self.stages],
            "",
            "## See more",
            "",
            "`KEEP=1 make demo` leaves the cluster up; then, with `export KUBECONFIG=build/rack/kubeconfig`:",
            "",
            f"- `kubectl -n {self.settings.namespace} get modelreplica {self.settings.name} -w`, and `describe` for "
            "its conditions and events;",
            "- `kubectl -n flashboot-system logs ds/flashboot-agent` for every clone, chunk server and attach;",
            "- `make rack-down` removes it.",
            "",
        ]
        return "\n".join(lines)


def row(replica: Replica) -> str:
    """A replica's line in the table."""
    cells = [
        f"{(when - replica.bound).total_seconds():.1f}"
        for when in (
            replica.clone_started,
            replica.clone_done,
            replica.asked_to_attach,
            replica.engine_attached,
            replica.ready,
        )
    ]
    rate = (
        f"{replica.bytes / MIB / replica.clone_seconds:.0f}"
        if replica.path == "clone" and replica.clone_seconds
        else ""
    )
    return f"| {replica.pod} | {replica.node} | {replica.path} | {' | '.join(cells)} | {rate} |"


def phases(replica: Replica) -> str:
    """The phases of its engine's start as a line of the table."""
    if replica.startup is None:
        return f"| {replica.pod} |" + " not told |" * 6
    times = replica.startup
    cells = (
        *(times.load_weight_milliseconds, times.kv_cache_allocation_milliseconds, times.cuda_graph_milliseconds),
        *(times.scheduler_milliseconds, times.tokenizer_milliseconds, times.api_ready_milliseconds),
    )
    return f"| {replica.pod} | {' | '.join('' if cell is None else f'{cell / 1000:.2f}' for cell in cells)} |"


def links(replicas: Sequence[Replica]) -> list[str]:
    """A line per link, and a last one with what each arena received in all."""
    lines = [
        f"| {path.node} | {replica.node} | {path.transport} | {path.bytes_in} | {path.bytes_in / replica.bytes:.3f} |"
        for replica in replicas
        for path in sorted(replica.paths, key=lambda path: path.node)
    ]
    received = sum(path.bytes_in for replica in replicas for path in replica.paths)
    wanted = sum(replica.bytes for replica in replicas if replica.path == "clone")
    if wanted:
        lines.append(f"| all | all clones | | {received} | {received / wanted:.3f} of what they hold |")
    return lines


def chain(replicas: Sequence[Replica]) -> list[str]:
    """The tree of who fed whom, drawn; nodes whose parent is none of ours are roots."""
    nodes = {replica.node for replica in replicas}
    lines: list[str] = []

    def draw(parent: str | None, depth: int) -> None:
        for replica in replicas:
            mine = replica.parent if replica.parent in nodes else None
            if mine == parent:
                arrow = "" if parent is None else "   " * (depth - 1) + "└─ "
                start = "checkpoint → " if replica.path == "seed" else ""
                sent = f"sent {replica.bytes_out / MIB:.1f} MiB" if replica.bytes_out else "sent nothing"
                lines.append(f"{arrow}{start}{replica.node} ({replica.pod}), {sent}")
                draw(replica.node, depth + 1)

    draw(None, 0)
    return lines
