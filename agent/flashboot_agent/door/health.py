"""Whether the door serves, asked cheaply: a probe runs this in a new process, on a node that may be short of CPU.

Importing gRPC costs about a second of CPU, and a check that is slow on a busy node would kill a healthy door just when
it is needed. So the running door asks itself, with a real call, and the check only reads the answer from a socket. This
module imports nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

SOCKET: Final = "health.sock"
"""Beside the CSI socket."""
OK: Final = "ok"
ASK_SECONDS: Final = 5.0


class HealthSocket:
    """Answers every connection with OK or with what is wrong.

    Args:
        path: bound anew; an old socket there is unlinked, and ours is never unlinked when we leave (see service.py).
        check: returns when the door serves, or raises OSError with the reason; bounded in time by itself.
    """

    def __init__(self, path: Path, check: Callable[[], None]) -> None:
        self._check = check
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        path.chmod(0o600)
        self._listener.listen(8)
        self._thread = threading.Thread(target=self._serve, name="health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(2 * ASK_SECONDS)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            with client, contextlib.suppress(OSError):  # the asker may be gone
                client.settimeout(ASK_SECONDS)
                try:
                    self._check()
                    answer = OK
                except OSError as error:
                    answer = str(error) or type(error).__name__
                client.sendall(answer.encode("utf-8", "backslashreplace"))


def ask(path: Path) -> int:
    """Exit code for a probe: 0, or 1 with the reason on stderr."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(2 * ASK_SECONDS)
        try:
            client.connect(str(path))
            answer = client.recv(4096).decode(errors="replace")
        except OSError as error:
            answer = f"{type(error).__name__}: {error}"
    if answer == OK:
        return 0
    print(f"the door does not answer at {path}: {answer}", file=sys.stderr)
    return 1
