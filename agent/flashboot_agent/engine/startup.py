"""How long the phases of the engine's start took: from SGLang to the agent, once the API is ready.

The same figures as in the engine's `/server_info`. They are taken inside the process that has them, not scraped: that
needs no address, no port, no API key and no hole in a NetworkPolicy, and the pod's socket is there already
(design/0012).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from flashboot_agent.engine.channel import Channel
from flashboot_agent.engine.keeper import Kept
from flashboot_agent.engine.log import log
from flashboot_agent.engine.messages import FromAgent, Refused
from flashboot_agent.wire.attach import Started
from flashboot_agent.wire.observed_pod import StartupTimes

STATE: Final = "sglang.srt.managers.tokenizer_manager.TokenizerManager._set_engine_state_field"
"""Every change of the server's state passes here; `_server_status` Up is what `/ready` waits for."""


def times_of(startup_time: Mapping[str, Any], api_ready: float | None) -> StartupTimes:
    """SGLang's `startup_time` (seconds) and the seconds from the process's start until the API was ready."""
    return StartupTimes(
        load_weight_milliseconds=_milliseconds(startup_time["load_weight"]),
        kv_cache_allocation_milliseconds=_milliseconds(startup_time["kv_cache_allocation"]),
        cuda_graph_milliseconds=_milliseconds(sum(startup_time["cuda_graph"].values())),
        scheduler_milliseconds=_milliseconds(startup_time["scheduler_e2e"]),
        tokenizer_milliseconds=_milliseconds(startup_time["tokenizer_e2e"]),
        api_ready_milliseconds=None if api_ready is None else _milliseconds(api_ready),
    )


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def process_age() -> float:
    """Seconds since this process was started, by a clock that nobody sets."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # field 22, "starttime"; the first two are cut off
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


class Report(Kept):
    """Tells the agent, and each later one, for as long as the engine runs."""

    def __init__(self, path: str, who: str, times: StartupTimes) -> None:
        super().__init__("flashboot-report", path, who)
        self._times = times

    def greet(self, channel: Channel) -> None:
        channel.send(Started(times=self._times).to_json())

    def heard(self, channel: Channel, message: FromAgent) -> None:
        """The agent has no answer to it, but for one that does not know the message."""
        if isinstance(message, Refused):
            log.warning("%s: the agent does not take the startup times: %s", self._who, message.problem.message)


class Reporter:
    """Waits for the API; `state_hook` goes around STATE."""

    def __init__(self, path: str, who: str, startup_time: Mapping[str, Any]) -> None:
        self._path = path
        self._who = who
        self._startup_time = startup_time
        self.telling: Report | None = None
        """Once the API was ready."""

    def state_hook(self, original: Any, manager: Any, name: str, value: Any) -> Any:
        result = original(manager, name, value)
        if name == "_server_status" and getattr(value, "name", "") == "Up":
            self.report(process_age())
        return result

    def report(self, api_ready: float | None) -> None:
        """Once; later calls do nothing."""
        if self.telling is not None:
            return
        times = times_of(self._startup_time, api_ready)
        log.warning("%s: the API is ready; %s", self._who, times.model_dump(exclude_none=True))
        self.telling = Report(self._path, self._who, times)
        self.telling.start()
