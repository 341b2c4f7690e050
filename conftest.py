"""What holds for all tests of the dev environment, alone or side by side with others on a busy machine."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

settings.register_profile("no deadlines", deadline=None)
settings.load_profile("no deadlines")
"""The time of one example says more about the machine than about the code: pytest's own timeout is the deadline."""

CONTROL_PLANE = "tests/component/controlplane/"
COSTLY = CONTROL_PLANE + "test_bounded.py"
LONGEST_FIRST = (COSTLY, CONTROL_PLANE, "tests/component/test_plain_pytorch.py", "tests/component/", "tests/property/")
"""The many short unit tests come last, and fill what is left of each worker's time."""


class ByModule(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """A module stays together on one of pytest's workers, since its tests share nodes, and so does all that needs the
    one API server, but for the module that loads it with hundreds of objects. (`--dist loadgroup` would say that with
    marks, but xdist 3.8 can't pass them on under pytest 9.)"""

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.split("::", 1)[0]
        return CONTROL_PLANE if module.startswith(CONTROL_PLANE) and module != COSTLY else module


def _begins(item: pytest.Item) -> int:
    """Where in LONGEST_FIRST it belongs."""
    return next((at for at, part in enumerate(LONGEST_FIRST) if item.nodeid.startswith(part)), len(LONGEST_FIRST))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_begins)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByModule:
    # By itself it begins with the modules of the most tests; a module of three that take minutes would come last, with
    # one worker busy and the others idle.
    config.option.loadscopereorder = False
    return ByModule(config, log)
