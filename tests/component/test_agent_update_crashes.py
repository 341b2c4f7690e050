"""An agent that is killed in the midst of an update: its successor puts the arena right before it tells of it, or drops
it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.component.agents import Cluster, Node, eventually
from tests.component.arena_versions import Versions, held, order, publish, read, root, seed

POINTS = {
    "barred": "base",
    "begun": "base",
    "located": "base",
    "appended:2": "base",
    "kept:2": "base",
    "torn kept:2": "base",
    "written": "base",
    "written:3": "base",
    "reverse named": "base",
    "committed": "new",
    "table": "new",
}
"""Step at which the agent ends → what its successor makes of the arena."""
IMAGES = Versions(len(POINTS) + 1)

pytestmark = pytest.mark.slow


class Crashes:
    """A node, and a chain of versions that one can't always reach."""

    def __init__(self, node: Node, folder: Path) -> None:
        self.node, self.origin, self._away = node, folder / "chain", folder / "away"
        publish(self.origin, IMAGES)
        node.start_holder()
        node.start_agent()
        seed(node, IMAGES[0])

    def crash(self, step: str, version: int) -> int:
        """The agent ends at `step` of bringing the arena to this version; what is published can't be reached then. With
        which status it ended."""
        node = self.node
        node.kill_agent()
        torn, step = (str(self._image(version)), step[5:]) if step.startswith("torn ") else ("", step)
        node.agent = node._start("tests.component.dying_agent", [step, *([torn] if torn else [])], "agent.log")
        eventually(lambda: node.get("/readyz")[0] == 200, "ready")
        node.want(held(update=order(self.origin, version)))
        status = node.agent.wait(30)
        self.origin.rename(self._away)
        return status

    def back(self) -> None:
        self._away.rename(self.origin)

    def _image(self, version: int) -> Path:
        path = self.origin.parent / f"{version}.bytes"
        path.write_bytes(IMAGES[version])
        return path


@pytest.fixture(scope="module")
def crashes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crashes]:
    cluster = Cluster()
    try:
        yield Crashes(cluster.node("a", start=False), tmp_path_factory.mktemp("published"))
    finally:
        print(cluster.logs())
        cluster.close()


@pytest.mark.parametrize(("number", "step"), list(enumerate(POINTS, 1)), ids=list(POINTS))
def test_killed_at_any_step_the_arena_is_a_version_when_the_next_agent_tells_of_it(
    crashes: Crashes, number: int, step: str
) -> None:
    node = crashes.node
    crashes.crash(step, number)
    expected = number if POINTS[step] == "new" else number - 1
    node.start_agent()
    arena = node.arena()
    assert arena is not None, "it is told at once"
    assert (arena.state, arena.version, arena.digest) == ("sealed", expected, root(IMAGES[expected]))
    node.want(held())
    assert read(node) == IMAGES[expected]
    crashes.back()
    node.want(held(update=order(crashes.origin, number)))
    node.until_arena(lambda arena: arena.version == number and arena.state == "sealed", "the order is fulfilled")
    assert read(node) == IMAGES[number]


@pytest.mark.parametrize("what", ["lost", "damaged"])
def test_without_its_journal_a_torn_arena_is_dropped(crashes: Crashes, what: str) -> None:
    node = crashes.node
    node.want()
    eventually(lambda: node.arena() is None, "nothing from the tests before")
    seed(node, IMAGES[0])
    crashes.crash("written:2", 1)
    journal = next((node.run / "updates").glob("*/journal"))
    if what == "lost":
        shutil.rmtree(journal)
    else:
        (journal / "reverse").write_bytes(b"?" + (journal / "reverse").read_bytes()[1:])
    node.start_agent()
    assert node.arena() is None
    assert node.held() == 0
    assert "bytes are of neither version" in node.log.read_text()
    crashes.back()


def test_an_agent_that_is_told_to_end_puts_back_what_it_wrote(crashes: Crashes) -> None:
    node = crashes.node
    node.want()
    eventually(lambda: node.arena() is None, "nothing from the tests before")
    seed(node, IMAGES[0])
    started = node.log.stat().st_size
    assert crashes.crash("told", 1) == 0
    node.start_agent()
    arena = node.arena()
    assert arena is not None
    assert (arena.state, arena.version) == ("sealed", 0)
    said = node.log.read_text()[started:]
    assert "update cancelled" in said
    assert "update settled" not in said
    node.want(held())
    assert read(node) == IMAGES[0]
    crashes.back()
