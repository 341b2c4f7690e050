"""How long the plug-in waits for an arena that comes slowly, by a clock of our own."""

from __future__ import annotations

import pytest

from flashboot_agent.core.errors import CloneFailed, DeadlineExceeded
from flashboot_agent.engine.messages import Coming
from flashboot_agent.engine.progress import Progress


class Wait:
    """At most 10 s for the first byte, and 3 s for each byte after it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.progress = Progress("pod p, rank tp0", 10, 3, lambda: self.now)

    def hears(self, watermark: int, after: float) -> None:
        self.now += after
        self.progress.heard(Coming(allocated=True, bytes=100, watermark=watermark, note="on n3"))


def test_a_clone_that_moves_may_take_as_long_as_it_will() -> None:
    wait = Wait()
    for watermark in range(1, 100):
        wait.hears(watermark, after=2.5)


def test_a_clone_that_begins_anew_moves_while_it_has_less_than_before() -> None:
    """The first arena was another's, and the one of this identity comes from its first byte on."""
    wait = Wait()
    for watermark in (90, 0, *range(10, 80, 10)):
        wait.hears(watermark, after=2)


def test_a_clone_that_stands_is_given_up() -> None:
    wait = Wait()
    wait.hears(40, after=1)
    wait.hears(40, after=3)
    with pytest.raises(CloneFailed, match=r"pod p.* stood at 40 of 100 bytes for 3 s .* on n3"):
        wait.hears(40, after=0.1)


@pytest.mark.parametrize(("watermark", "says"), [(0, "no byte of the arena"), (100, "100 bytes .* no leave to use")])
def test_the_first_byte_and_leave_to_use_the_last_have_a_deadline_of_their_own(watermark: int, says: str) -> None:
    wait = Wait()
    wait.hears(watermark, after=10)
    assert not wait.progress.overdue
    with pytest.raises(DeadlineExceeded, match=f"pod p.*{says}.* within 10 s; last word: on n3"):
        wait.hears(watermark, after=0.1)
