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


class ByModule(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """A module stays together on one of pytest's workers, since its tests share nodes, and so does all that needs the
    one API server, but for the module that loads it with hundreds of objects. (`--dist loadgroup` would say that with
    marks, but xdist 3.8 can't pass them on under pytest 9.)"""

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.split("::", 1)[0]
        return CONTROL_PLANE if module.startswith(CONTROL_PLANE) and module != COSTLY else module


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByModule:
    return ByModule(config, log)
