"""The operator's log: the shared JSON lines, with kopf kept quiet."""

from __future__ import annotations

import logging

from flashboot_agent import logs


def configure(identity: str, level: str) -> None:
    """Ours from `level` up, libraries from warnings up; kopf's word on each handled event is no news."""
    logs.configure(level, package="flashboot_operator", part="operator", identity=identity)
    logging.getLogger("kopf.objects").setLevel(logging.ERROR)
