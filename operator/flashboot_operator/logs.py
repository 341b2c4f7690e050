"""JSON logs, one object a line, in the agent's form."""

from __future__ import annotations

import logging
import sys
import warnings

from flashboot_agent.node.logs import JsonFormatter


def configure(identity: str, level: str) -> None:
    """Ours from `level` up, libraries from warnings up; kopf's chatter about every handled event is none of our news."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter("operator", identity))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("flashboot_operator").setLevel(level)
    logging.getLogger("kopf.objects").setLevel(logging.ERROR)
    logging.captureWarnings(True)
    warnings.simplefilter("default")
