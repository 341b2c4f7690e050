"""SIGTERM: SGLang's own drain, inside the time that kubelet grants before it kills.

SGLang (0.5.23) stops being ready, looks every five seconds whether a request still runs, then ends its schedulers. It
sets itself no deadline, and goes on taking requests meanwhile. In the process that listens we add:

* new requests are refused with 503 from the first moment; clients of a Service try another replica;
* requests that run until `abort_after` are aborted: each client gets what there is, marked as aborted;
* what hangs until `leave_after` is left behind: the process ends, and says so, before kubelet ends it without a word;
* before the server listens there is nothing to drain: the engine ends at once. (As a container's first process it would
  not even notice the signal.)

The arena is not touched by any of it: it belongs to the agent, and other engines and nodes go on with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, NoReturn

from flashboot_agent.engine.log import log

SIGTERM_HANDLER: Final = "sglang.srt.managers.tokenizer_manager.SignalHandler.sigterm_handler"
MIDDLEWARE: Final = "fastapi.applications.FastAPI.build_middleware_stack"
"""What a FastAPI application calls once, when it starts to serve."""

ENDING_SECONDS: Final = 12.0
"""What SGLang needs once nothing runs any more: up to 5 s until it looks, then its schedulers end."""

READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
STILL_TAKEN: Final = frozenset({"/abort_request"})
"""What a client may still want of a request that runs."""

ENDED_BY_SIGTERM: Final = 128 + signal.SIGTERM

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Callable[[], Awaitable[Message]], Send], Awaitable[None]]


def abort_after(grace: float) -> float:
    """Seconds from SIGTERM until requests that still run are aborted, of `grace` until kubelet kills."""
    return max(grace - ENDING_SECONDS, grace / 2)


def leave_after(grace: float) -> float:
    """Seconds from SIGTERM until the process ends whatever hangs."""
    return grace - min(2.0, grace / 10)


def end_at_once_before_serving() -> None:
    """SIGTERM ends the process until SGLang or its server sets another handler. For the main thread of a main process;
    leaves a handler that is there already."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end)


def _end(number: int, frame: object) -> NoReturn:
    log.warning("SIGTERM before the server serves: ending")
    raise SystemExit(ENDED_BY_SIGTERM)


class Drain:
    """One per process that listens; hooks go around SIGTERM_HANDLER and MIDDLEWARE."""

    def __init__(self, grace: float, leave: Callable[[], None] | None = None) -> None:
        """`grace`: seconds from SIGTERM to SIGKILL. `leave` ends the process and its children."""
        self._grace = grace
        self._leave = leave or _leave
        self.begun = False

    def sigterm_hook(self, original: Any, handler: Any, *arguments: Any, **named: Any) -> Any:
        """Called by the server's event loop, as SGLang's own handler is."""
        result = original(handler, *arguments, **named)
        if not self.begun:
            self.begun = True
            self._begin(handler.tokenizer_manager)
        return result

    def _begin(self, manager: Any) -> None:
        log.warning(
            "draining: %d requests run; new ones are refused, those that run longer than %.0f s are aborted",
            len(manager.rid_to_state),
            abort_after(self._grace),
        )
        asyncio.get_running_loop().call_later(abort_after(self._grace), self._abort, manager)
        timer = threading.Timer(leave_after(self._grace), self._leave)  # a thread: SGLang may block the loop
        timer.daemon = True
        timer.start()

    def _abort(self, manager: Any) -> None:
        running = len(manager.rid_to_state)
        if running:
            log.warning("aborting %d requests that ran longer than the grace period allows", running)
            manager.abort_request(abort_all=True)

    def middleware_hook(self, original: Any, application: Any) -> Application:
        inner: Application = original(application)

        async def gate(scope: Message, receive: Callable[[], Awaitable[Message]], send: Send) -> None:
            if self.begun and _is_new_work(scope):
                await _refuse(scope, send)
            else:
                await inner(scope, receive, send)

        return gate


def _is_new_work(scope: Message) -> bool:
    if scope["type"] == "websocket":
        return True
    return scope["type"] == "http" and scope["method"] not in READS and scope["path"] not in STILL_TAKEN


async def _refuse(scope: Message, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1012, "reason": "this replica is shutting down"})
        return
    error = {"message": "this replica is shutting down; try again, another one answers", "type": "ServiceUnavailable"}
    headers = [(b"content-type", b"application/json"), (b"retry-after", b"1"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"error": {**error, "code": 503}}).encode()})


def _leave() -> None:
    from sglang.srt.utils import kill_process_tree

    log.error("the drain did not end within the grace period (FLASHBOOT_GRACE_SECONDS): leaving what hangs behind")
    try:
        # Not waited for: a child that does not even die of SIGKILL must not keep this process.
        kill_process_tree(os.getpid(), include_parent=False, wait_timeout=None)
    finally:
        os._exit(1)
