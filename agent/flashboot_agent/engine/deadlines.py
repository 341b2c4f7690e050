"""How long the engine waits, by default and by its environment."""

from __future__ import annotations

import os
from collections.abc import Mapping

from flashboot_agent.engine.request import ARENA_SECONDS, CONNECT_SECONDS


class Deadlines:
    """Seconds that the engine waits before it ends with an error; a restart of the pod then starts them anew."""

    def __init__(
        self,
        *,
        connect: float = CONNECT_SECONDS,
        arena: float = ARENA_SECONDS,
        preflight: float = 600.0,
        grace: float = 30.0,
    ) -> None:
        self.connect = connect
        """For an agent or a door that is away (FLASHBOOT_CONNECT_SECONDS)."""
        self.arena = arena
        """For the arena's first byte: another pod may be loading a large checkpoint (FLASHBOOT_ARENA_SECONDS)."""
        self.preflight = preflight
        """For a broken checkpoint to be put right (FLASHBOOT_PREFLIGHT_SECONDS)."""
        self.grace = grace
        """From SIGTERM to the end (FLASHBOOT_GRACE_SECONDS, by the operator: what kubelet grants); engine/drain.py."""

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Deadlines:
        """Raises BadRequest when a variable is no positive number."""
        values: dict[str, float] = {}
        for name in vars(cls()):
            variable = f"FLASHBOOT_{name.upper()}_SECONDS"
            text = environment.get(variable)
            if text is None:
                continue
            try:
                values[name] = float(text)
            except ValueError:
                values[name] = -1.0
            if not 0 < values[name] < float("inf"):
                from flashboot_agent.core.errors import BadRequest  # late: deadlines are for every attach

                raise BadRequest(f"{variable} must be a positive number of seconds, not {text!r}")
        return cls(**values)
