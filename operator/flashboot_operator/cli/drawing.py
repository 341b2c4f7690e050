"""A lane's forest as text: one line per chain, which goes on from each node to the child with the longest chain below
it.

A node's other children start lines of their own, which begin with the node that feeds them. So a chain of a hundred
nodes stays readable, and so does a chain with a hundred late arrivals along it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

WIDTH = 110


def draw(edges: Mapping[str, str], roots: Sequence[str], notes: Mapping[str, str]) -> list[str]:
    """Lines for people. `edges`: child → parent, without circles. `notes`: what to say behind a node's name."""
    children: dict[str, list[str]] = {}
    for child in sorted(edges):
        children.setdefault(edges[child], []).append(child)
    height = _heights(edges)
    lines: list[str] = []
    for root in roots:
        chains: list[tuple[str, str]] = [("", root)]
        while chains:
            above, node = chains.pop(0)
            words = [f"└─ {above}"] if above else []
            while True:
                words.append(f"{node} {notes[node]}" if node in notes else node)
                below = sorted(children.get(node, ()), key=lambda n: -height[n])
                chains += [(node, other) for other in below[1:]]
                if not below:
                    break
                node = below[0]
            lines += _wrap(words, indent="   " if above else "")
    return lines


def _heights(edges: Mapping[str, str]) -> dict[str, int]:
    """Node → edges on the longest way down."""
    height = dict.fromkeys([*edges, *edges.values()], 0)
    for node in edges:
        up, at = 0, node
        while at in edges:
            at, up = edges[at], up + 1
            height[at] = max(height[at], up)
    return height


def _wrap(words: Sequence[str], indent: str) -> list[str]:
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + len(word) + 3 > WIDTH:
            lines.append(f"{indent}   → {word}")
        else:
            lines[-1] += f" → {word}"
    return lines
