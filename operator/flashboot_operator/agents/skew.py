"""Whether an agent's version goes with ours, by what it says and by what it refuses."""

from __future__ import annotations

from flashboot_agent.wire.observed import Observed
from flashboot_operator.agents.client import AgentError, AgentRefused, AgentSkewed

SHOWN = 300
"""Characters of an agent's complaint."""


class Skew:
    """Of one agent."""

    def __init__(self) -> None:
        self._not_understood = ""
        self._not_obeyed = ""

    def __str__(self) -> str:
        """What is wrong; empty while nothing is."""
        return self._not_understood or self._not_obeyed

    def failed(self, error: AgentError) -> None:
        """It did not answer what it observes."""
        self._not_understood = str(error) if isinstance(error, AgentSkewed) else ""

    def heard(self) -> None:
        self._not_understood = ""

    def refused(self, error: AgentError, seen: Observed | None) -> None:
        """It did not take what it was told."""
        if isinstance(error, AgentRefused) and error.problem.reason == "BadRequest" and seen is not None:
            words = f"does not understand this operator: {error.problem.message[:SHOWN]}"
            self._not_obeyed = f"the agent, version {seen.version}, {words}"

    def obeyed(self) -> None:
        self._not_obeyed = ""
