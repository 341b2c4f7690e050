"""A socket in the folder of every published pod, and a session for every plug-in that connects. Loop side only."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from flashboot_agent.listener import listen
from flashboot_agent.logs import Log
from flashboot_agent.node.packets import PacketSocket
from flashboot_agent.node.pods import Pod
from flashboot_agent.node.session import Session
from flashboot_agent.node.state import NodeState
from flashboot_agent.wire.attach import SOCKET_NAME

log = Log(__name__)

ANY_USER: Final = 0o666
"""Any user of the pod may connect; the folder is the credential."""

MOST_SESSIONS: Final = 64
"""Of one pod: a bound on what a broken plug-in can cost, far above one per rank."""


class PodSockets:
    """`serve` is idempotent: a folder that is not there yet, or was replaced, is served by a later call."""

    def __init__(self, node: NodeState) -> None:
        self._node = node
        self._listening: dict[str, tuple[socket.socket, int]] = {}
        """UID → listener and the inode of the pod's folder."""
        self._sessions: dict[str, set[asyncio.Task[None]]] = {}

    def serve(self, pod: Pod) -> None:
        folder = self._node.settings.pods / pod.uid
        try:
            inode = folder.stat().st_ino
        except OSError:
            return
        listening = self._listening.get(pod.uid)
        if listening is not None and listening[1] == inode and (folder / SOCKET_NAME).exists():
            return
        try:
            listener = listen(folder, SOCKET_NAME, mode=ANY_USER, backlog=16)
        except OSError as error:
            log.error("pod's socket can't be bound", pod=pod.uid, path=str(folder), why=str(error))
            return
        self._stop_listening(pod.uid)
        self._listening[pod.uid] = (listener, inode)
        asyncio.get_running_loop().add_reader(listener.fileno(), self._accept, pod, listener)
        log.info("pod served", pod=pod.uid)

    def end(self, pod: Pod) -> None:
        """The pod is gone: its socket and its connections too."""
        self._stop_listening(pod.uid)
        for task in self._sessions.pop(pod.uid, set()):
            task.cancel()

    async def close(self) -> None:
        """Leave the socket files: clients meet a refusal and retry until the next agent replaces them."""
        for uid in list(self._listening):
            self._stop_listening(uid)
        tasks = [task for tasks in self._sessions.values() for task in tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, pod: Pod, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError as error:
            log.warning("connection lost before it was taken", pod=pod.uid, why=str(error))
            return
        tasks = self._sessions.setdefault(pod.uid, set())
        if len(tasks) >= MOST_SESSIONS:
            log.warning("too many connections", pod=pod.uid, most=MOST_SESSIONS)
            sock.close()
            return
        task = asyncio.create_task(Session(self._node, pod, PacketSocket(sock)).serve())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        task.add_done_callback(_report)

    def _stop_listening(self, uid: str) -> None:
        listener, _ = self._listening.pop(uid, (None, 0))
        if listener is not None:
            asyncio.get_running_loop().remove_reader(listener.fileno())
            listener.close()


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("session failed", exc_info=error)
