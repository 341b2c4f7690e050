"""One line per node: in place on a terminal, else a line whenever a node's line says something new."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from demo.live import NodeView
from flashboot_agent.wire.observed_arena import ObservedArena

WIDTH = 20
MIB = 1 << 20

PHASES = {
    "published": "pod is there, engine starts",
    "connected": "engine asked",
    "coming": "engine waits for its weights",
    "seeding": "engine loads the checkpoint",
    "attached": "engine has its weights",
}


def line(view: NodeView, ready: bool) -> str:
    """A node's state in one line of text."""
    if view.trouble is not None:
        return f"{view.node:<12} ? {view.trouble[:100]}"
    if view.arena is None and view.pod is None:
        return f"{view.node:<12} -"
    words = []
    if view.arena is not None:
        full = view.percent() * WIDTH // 100
        words.append(f"[{'#' * full}{'.' * (WIDTH - full)}] {view.percent():3d} %")
        words.append(f"{view.arena.watermark / MIB:6.1f}/{view.arena.bytes / MIB:.1f} MiB {view.arena.state:<9}")
        words.append(_origin(view.arena))
        if view.arena.children:
            words.append(f"to {', '.join(view.arena.children)}")
    if view.pod is not None:
        words.append(f"| {view.pod.name[-11:]}: {'Ready' if ready else PHASES[view.pod.phase]}")
        words += [f"({problem.reason})" for problem in view.pod.problems]
    return f"{view.node:<12} {' '.join(words)}"


def _origin(arena: ObservedArena) -> str:
    if arena.parent is not None:
        return f"from {arena.parent}"
    return "from the checkpoint" if arena.way == "seed" else "waits for a parent"


class Screen:
    """Draws the nodes' lines again and again."""

    def __init__(self, out: TextIO = sys.stdout) -> None:
        self._out = out
        self._drawn: dict[str, str] = {}
        self._height = 0

    def draw(self, views: Sequence[NodeView], ready_pods: frozenset[str]) -> None:
        lines = {v.node: line(v, v.pod is not None and v.pod.name in ready_pods) for v in views}
        if self._out.isatty():
            if self._height:
                self._out.write(f"\x1b[{self._height}A")
            for text in lines.values():
                self._out.write(f"\r\x1b[K    {text[:160]}\n")
            self._height = len(lines)
        else:
            for node, text in lines.items():
                if self._drawn.get(node) != text:
                    self._out.write(f"    {text}\n")
        self._drawn = lines
        self._out.flush()
