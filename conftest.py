"""What holds for all tests of the dev environment, alone or side by side with others on a busy machine."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("no deadlines", deadline=None)
settings.load_profile("no deadlines")
"""The time of one example says more about the machine than about the code: pytest's own timeout is the deadline."""
