"""JSON logs to stdout: one line per event, with the same keys in every part of FlashBoot.

`event` is constant text; what varies goes into facts, which become keys of the line. Stands beside the layers, so that
the agent, the door and the operator can all share it.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final

FACTS: Final = "facts"
"""The one attribute of a log record that is ours: facts of their own could collide with logging's names."""

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", FACTS}


class JsonFormatter(logging.Formatter):
    """`fixed` stands in every line; then the record's facts, and whatever else was passed as `extra`."""

    def __init__(self, **fixed: str) -> None:
        super().__init__()
        self._fixed = fixed

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **self._fixed,
        }
        line.update({key: value for key, value in vars(record).items() if key not in _STANDARD})
        line.update(getattr(record, FACTS, {}))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def configure(level: str, package: str = "flashboot_agent", **fixed: str) -> None:
    """Send everything to stdout as JSON: `package` from `level` up, libraries from warnings up."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter(**fixed))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger(package).setLevel(level)


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
