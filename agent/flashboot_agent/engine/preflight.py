"""Wait for a checkpoint that is missing or broken, instead of dying again and again.

`before_start` runs in the server's main process before SGLang reads its arguments (it would die of a bad path).
`wait_for_weights` runs on the seed right before the load. Both check every two seconds, show the trouble in the pod's
status, go on by themselves once the files are right, and end with an error at their deadline.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from flashboot_agent.core.errors import DeadlineExceeded, FlashBootError, Retryable
from flashboot_agent.engine import messages
from flashboot_agent.engine.channel import Channel
from flashboot_agent.engine.deadlines import Deadlines
from flashboot_agent.engine.log import Patient, log
from flashboot_agent.engine.settings import LOAD_FORMAT, EngineSettings, settings_of
from flashboot_agent.memory.memfd import close_all
from flashboot_agent.wire.problem import Problem

CHECK_SECONDS: Final = 2.0


class Reporter(Protocol):
    """Shows a trouble in the pod's status. Never blocks for long; False when the agent is away (tried again later)."""

    def report(self, problem: Problem) -> bool: ...

    def clear(self) -> bool: ...


@dataclass(frozen=True)
class Asked:
    """What a command line says about us."""

    settings: EngineSettings
    load_format: str
    model_path: str | None


def asked(arguments: Sequence[str]) -> Asked | None:
    """Our part of SGLang's command line, or None when it does not name us. Raises BadRequest when it is wrong."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--load-format", default="auto")
    parser.add_argument("--model-loader-extra-config", default="{}")
    parser.add_argument("--model-path", "--model", default=None)
    try:
        known, rest = parser.parse_known_args(list(arguments))
    except argparse.ArgumentError:
        return None  # an option without its value: SGLang's own parser says it better
    settings = settings_of(known.model_loader_extra_config)
    if settings is None:
        return None
    path = known.model_path
    if path is None and len(rest) > 1 and rest[0] == "serve" and not rest[1].startswith("-"):
        path = rest[1]
    return Asked(settings, known.load_format, path)


def before_start(arguments: Sequence[str]) -> None:
    """Return at once unless the command line is ours; else when its model folder has a sound config.json.

    Raises BadRequest (the flags are wrong), DeadlineExceeded (the folder was not put right in time).
    """
    ours = asked(arguments)
    if ours is None or ours.load_format != LOAD_FORMAT or ours.model_path is None:
        return
    path = Path(ours.model_path)
    if not path.is_absolute() and not path.exists():
        return  # a name on a hub; SGLang fetches it or says why not
    from flashboot_agent.core.checkpoint import check_config

    reporter = SocketReporter(ours.settings.socket)
    try:
        wait_until_sound(lambda: check_config(path), reporter, Deadlines.of().preflight, str(path))
    finally:
        reporter.close()


def wait_for_weights(model_path: str, reporter: Reporter, seconds: float) -> None:
    """Return when the folder's weight files are whole. A name on a hub is SGLang's business.

    Raises DeadlineExceeded.
    """
    path = Path(model_path)
    if not path.is_dir():
        return
    from flashboot_agent.core.checkpoint import check_config, check_weights

    def check() -> None:
        check_config(path)
        check_weights(path)

    wait_until_sound(check, reporter, seconds, str(path))


def wait_until_sound(
    check: Callable[[], object],
    reporter: Reporter,
    seconds: float,
    what: str,
    *,
    pause: Callable[[float], object] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Call `check` until it raises nothing retryable, reporting each new problem.

    Raises DeadlineExceeded after `seconds`; errors that waiting can't mend at once.
    """
    pause = pause or time.sleep
    deadline = clock() + seconds
    patient = Patient(f"waiting for {what} to be put right")
    shown: Problem | None = None
    troubled = False
    while True:
        try:
            check()
        except Retryable as error:
            problem = error.problem()
            troubled = True
            patient.say(f"{error.reason}: {error}")
            if problem != shown and reporter.report(problem):
                shown = problem
            if clock() > deadline:
                raise DeadlineExceeded(
                    f"{what} was not put right within {seconds:.0f} s (FLASHBOOT_PREFLIGHT_SECONDS): {error}"
                ) from error
            pause(CHECK_SECONDS)
            continue
        except FlashBootError as error:
            reporter.report(error.problem())
            raise
        break
    if troubled:
        log.warning("%s is right now, going on", what)
        while not reporter.clear() and clock() <= deadline:
            pause(CHECK_SECONDS)


class SocketReporter:
    """Reports before there is an identity to say hello with; the agent knows the pod by its socket."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._channel: Channel | None = None

    def report(self, problem: Problem) -> bool:
        return self._tell(messages.trouble(problem))

    def clear(self) -> bool:
        return self._tell(messages.clear())

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _tell(self, message: bytes) -> bool:
        try:
            if self._channel is None or not _alive(self._channel):
                self.close()
                self._channel = Channel(self._path, timeout=CHECK_SECONDS)
            self._channel.send(message)
        except OSError as error:
            log.warning("%s: the agent could not be told: %s", self._path, error)
            self.close()
            return False
        return True


def _alive(channel: Channel) -> bool:
    """Whether the other side still holds the connection; a word of its is not for us."""
    try:
        _, descriptors = channel.receive(0.001)
    except TimeoutError:
        return True
    except (OSError, FlashBootError):
        return False
    close_all(descriptors)
    return True
