"""JSON logs to stdout: one line per event, with the node in each and the arena and the pod where there is one."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final

FACTS: Final = "facts"
"""The one attribute of a log record that is ours: facts of their own could collide with logging's names."""


class JsonFormatter(logging.Formatter):
    """The facts become keys of the line."""

    def __init__(self, part: str, node: str) -> None:
        super().__init__()
        self._fixed = {"part": part, "node": node}

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **self._fixed,
        }
        line.update(getattr(record, FACTS, {}))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def configure(part: str, node: str, level: str = "INFO") -> None:
    """Send everything to stdout as JSON; libraries from warnings up."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter(part, node))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("flashboot_agent").setLevel(level)


class Log:
    """`log.info("clone started", arena=…, parent=…)`: the message is constant, the facts are fields."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def info(self, event: str, **facts: object) -> None:
        self._logger.info(event, extra={FACTS: facts})

    def warning(self, event: str, **facts: object) -> None:
        self._logger.warning(event, extra={FACTS: facts})

    def error(self, event: str, *, exc_info: BaseException | None = None, **facts: object) -> None:
        self._logger.error(event, exc_info=exc_info, extra={FACTS: facts})
