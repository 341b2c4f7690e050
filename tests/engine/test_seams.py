"""The list of SGLang's names that we touch is whole, by our own source, and true of the SGLang that is installed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import flashboot_agent
from flashboot_agent.engine import plugin, seams

SOURCE = Path(flashboot_agent.__file__).parent
PINNED = {seam.target for seam in seams.SEAMS}


def used(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and `module:name` of each import of SGLang, the name empty for a whole module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "sglang":
            for alias in node.names:
                yield node.lineno, f"{node.module}:{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "sglang":
                    yield node.lineno, f"{alias.name}:"


def pinned(target: str) -> bool:
    """A module counts as pinned with any name in it."""
    module, _, name = target.partition(":")
    return target in PINNED or (not name and any(each.startswith(f"{module}:") for each in PINNED))


def test_every_import_of_sglang_in_our_source_is_pinned() -> None:
    found = [
        (path.relative_to(SOURCE), line, target)
        for path in sorted(SOURCE.rglob("*.py"))
        for line, target in used(ast.parse(path.read_text()))
    ]
    assert len(found) > 20, "the search finds imports"
    missing = [f"{path}:{line}: {target}" for path, line, target in found if not pinned(target)]
    assert not missing, f"not in flashboot_agent/engine/seams.py: {missing}"


def test_an_import_without_a_pin_would_be_found() -> None:
    tree = ast.parse("def f():\n    import sglang.no.such\n    from sglang.srt.utils import is_cuda\n    import os")
    assert list(used(tree)) == [(2, "sglang.no.such:"), (3, "sglang.srt.utils:is_cuda")]
    assert not any(pinned(target) for _, target in used(tree))


def test_every_name_of_sglang_in_a_string_is_pinned() -> None:
    """Targets of hooks, and classes that hooks are put on."""
    words = {
        node.value
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"sglang(\.\w+)+", node.value)
    }
    dotted = {target.replace(":", ".") + "." for target in PINNED}
    assert len(words) > 5, "the search finds names"
    assert not {word for word in words if not any(each.startswith(f"{word}.") for each in dotted)}


def test_every_hook_is_on_a_pinned_name() -> None:
    dotted = {target.replace(":", ".") for target in PINNED}
    assert not set(plugin.scheduler_hooks()) - dotted
    assert not set(plugin.main_hooks()) - dotted


def test_this_sglang_is_as_pinned(hooked: None) -> None:
    assert not list(seams.problems(seams.SEAMS))


def test_no_name_is_pinned_twice() -> None:
    assert len(PINNED) == len(seams.SEAMS)


@pytest.mark.parametrize(
    ("seam", "says"),
    [
        (seams.Seam("sglang.no.such:thing"), "sglang.no.such:thing is not there"),
        (seams.Seam("sglang.srt.utils:no_such"), "sglang.srt.utils:no_such is not there"),
        (seams.Seam("sglang.srt.utils:cpu_has_amx_support", "device"), "takes (), known is (device)"),
        (seams.Seam("sglang.srt.configs.load_config:LoadFormat", None, ("NO_SUCH",)), "has no NO_SUCH"),
    ],
)
def test_what_differs_is_told(seam: seams.Seam, says: str) -> None:
    (line,) = seams.problems([seam])
    assert says in line


def test_shapes_show_names_defaults_and_stars() -> None:
    def one(a: int, b: int = 1, *, c: int, d: int = 2) -> None: ...

    def other(*rest: int, c: int, **more: int) -> None: ...

    assert seams.shape_of(one) == "a, b=, *, c, d="
    assert seams.shape_of(other) == "*rest, c, **more"
