"""JSON logs, one object a line: what is passed as `extra` becomes fields."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    def __init__(self, identity: str) -> None:
        super().__init__()
        self._fixed = {"part": "operator", "identity": identity}

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **self._fixed,
        }
        line.update({key: value for key, value in vars(record).items() if key not in _STANDARD})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def configure(identity: str, level: str) -> None:
    """Ours from `level` up, libraries from warnings up; kopf's word on each handled event is no news."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter(identity))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("flashboot_operator").setLevel(level)
    logging.getLogger("kopf.objects").setLevel(logging.ERROR)
