"""Stage lines for people: what is being made, for how long already, and what came from the cache."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_started = time.monotonic()
_HEARTBEAT_S = 30.0  # a long build says that it is alive


def say(text: str) -> None:
    """One line on standard error with the seconds since the program began."""
    print(f"{time.monotonic() - _started:7.1f} s  {text}", file=sys.stderr, flush=True)


@contextmanager
def stage(what: str) -> Iterator[None]:
    """Announce `what`, repeat it while it lasts, and say how long it took."""
    begun = time.monotonic()
    done = threading.Event()

    def beat() -> None:
        while not done.wait(_HEARTBEAT_S):
            say(f"{what}: still at it, {time.monotonic() - begun:.0f} s")

    say(f"{what} ...")
    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    except BaseException:  # Ctrl-C, too: whoever reads the log learns what was under way
        say(f"{what}: failed after {time.monotonic() - begun:.1f} s")
        raise
    finally:
        done.set()
        thread.join()
    say(f"{what}: done in {time.monotonic() - begun:.1f} s")
