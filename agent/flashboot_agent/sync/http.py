"""A publisher's folder behind an HTTP server: any that serves files; one with ranges lets downloads go on.

A delta is given to its user while it comes (incoming.py); its file is gone when it was used, or when it is not right.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx

from flashboot_agent.core.errors import BadRequest, DeadlineExceeded, DeltaUnreachable, NotReady
from flashboot_agent.delta.disk import room_in
from flashboot_agent.delta.file import Delta
from flashboot_agent.sync import chain_file
from flashboot_agent.sync.chain import Step
from flashboot_agent.sync.download import Download, require_plain
from flashboot_agent.sync.incoming import Incoming
from flashboot_agent.sync.line import FRESH, Line
from flashboot_agent.sync.origin import Origin, Progress
from flashboot_agent.sync.spool import Spool

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

RESUMABLE: Final = (DeltaUnreachable, DeadlineExceeded, KeyboardInterrupt, SystemExit)
"""What is no reason to receive again what is right already."""


class HttpOrigin(Origin):
    """A context manager, for its connections. Proxies of the environment are not used, nor is a redirect followed."""

    def __init__(
        self,
        url: str,
        *,
        tls: ssl.SSLContext | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float = 600.0,
        stall_seconds: float = 30.0,
        pause: float = 0.2,
    ) -> None:
        """`url`: of the folder. `tls`: default: the system's authorities. `headers`: sent along, a token for example.
        `seconds`: for a file; `stall_seconds`: for a connection, and without a byte. Raises BadRequest."""
        if not url.startswith(("http://", "https://")):
            raise BadRequest(f"{url} is no http:// or https:// address of a folder")
        self._url = url.rstrip("/")
        self._seconds, self._stall, self._pause = seconds, stall_seconds, pause
        self._client = httpx.Client(
            verify=tls or (ssl.create_default_context() if self._url.startswith("https") else False),
            headers={**(headers or {}), "accept-encoding": "identity"},
            follow_redirects=False,
            trust_env=False,
        )

    def chain(self) -> bytes:
        url, line, until = f"{self._url}/{chain_file.NAME}", Line(), time.monotonic() + self._seconds
        headers, stall = {"cache-control": "no-cache", **FRESH}, min(self._stall, self._seconds)
        data = bytearray()
        late = threading.Timer(self._seconds, line.cut)
        late.daemon = True
        late.start()
        try:
            with self._client.stream("GET", url, headers=headers, timeout=stall, extensions=line.extensions) as answer:
                if answer.status_code == 404:
                    raise NotReady(f"{url} is not there: nothing is published at this address yet")
                if answer.status_code != 200:
                    raise DeltaUnreachable(f"{url}: {answer.status_code} {answer.reason_phrase}")
                require_plain(answer, url)
                for piece in answer.iter_raw():
                    data += piece[: chain_file.MAX_BYTES + 1 - len(data)]
                    if len(data) > chain_file.MAX_BYTES:
                        break
        except (httpx.TransportError, httpx.InvalidURL) as error:
            if time.monotonic() < until:
                raise DeltaUnreachable(f"{url}: {str(error) or type(error).__name__}") from error
        finally:
            late.cancel()
        if time.monotonic() >= until:
            raise DeadlineExceeded(f"{url}: {len(data)} bytes after {self._seconds:g} s, and no end")
        return bytes(data)

    @contextmanager
    def delta(
        self,
        step: Step,
        spool: Path,
        trusted: Sequence[Ed25519PublicKey] | None,
        *,
        keep: bool = False,
        progress: Progress = lambda step, nbytes: None,
    ) -> Iterator[Delta]:
        incoming = Incoming(self._seconds, lambda: progress(step, file.verified))
        url = f"{self._url}/{step.file}"

        def moved() -> None:
            incoming.arrived()
            progress(step, file.verified)

        with room_in(spool, url):
            file = Spool(spool, step, trusted, url, moved)
        with file:
            try:
                file.take_up()
                limits = {"seconds": self._seconds, "stall_seconds": self._stall, "pause": self._pause}
                download = Download(self._client, url, file, **limits)
                incoming.start(file, download.run, download.cancel)
                with incoming:
                    yield incoming.delta()
            except RESUMABLE:
                keep = file.verified > 0
                raise
            except BaseException:  # whatever it was: this file is of no use
                keep = False
                raise
            finally:
                if not keep:
                    file.path.unlink(missing_ok=True)

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> HttpOrigin:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __str__(self) -> str:
        return self._url
