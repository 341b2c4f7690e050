"""A real kube-apiserver and etcd on loopback, without nodes: what the operator's own contracts are tested against."""

from __future__ import annotations

import base64
import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

REPO = Path(__file__).resolve().parents[3]
TOKEN = "component-test-admin"
OPERATOR = "flashboot-operator"
"""Name of the user, and the token, that the operator speaks with."""
PERSON = "alice"
"""Name and token of a user without any right."""


def binaries() -> Path | None:
    """Folder with kube-apiserver and etcd, or None: the environment's, else the cache that `make setup` fills."""
    if given := os.environ.get("FLASHBOOT_CONTROLPLANE_BIN"):
        return Path(given)
    asked = subprocess.run(
        [sys.executable, "-m", "setup_env", "path", "controlplane"],
        env={**os.environ, "PYTHONPATH": str(REPO / "e2e")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    folder = Path(asked.stdout.strip())
    return folder if asked.returncode == 0 and (folder / "kube-apiserver").exists() else None


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class ApiError(Exception):
    def __init__(self, code: int, body: dict[str, Any]) -> None:
        super().__init__(f"{code}: {body.get('message')}")
        self.code = code
        self.body = body

    @property
    def message(self) -> str:
        return str(self.body.get("message"))

    @property
    def fields(self) -> list[str]:
        return [cause.get("field", "") for cause in self.body.get("details", {}).get("causes", [])]


@dataclass
class ApiServer:
    """The running pair; `call` is a plain client of the test's own: our client is not tested with itself."""

    folder: Path
    port: int
    etcd_port: int
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    restarts: list[datetime] = field(default_factory=list)
    _idle: deque[http.client.HTTPSConnection] = field(default_factory=deque)
    _context: ssl.SSLContext | None = None

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def operators_kubeconfig(self) -> Path:
        """With the operator's rights and no more."""
        return self.folder / "kubeconfig-operator"

    def call(
        self, method: str, path: str, body: Any = None, content: str = "application/json", timeout: float = 10
    ) -> Any:
        """From any thread, over a connection that stays open: a handshake costs more than most calls."""
        headers = {"Authorization": f"Bearer {TOKEN}"} | ({"Content-Type": content} if body is not None else {})
        data = json.dumps(body).encode() if body is not None else None
        try:
            status, text = self._exchange(method, path, data, headers, timeout)
        except http.client.HTTPException as error:
            raise ConnectionError(f"{method} {path}: {error!r}") from error
        if status < 400:
            return json.loads(text or b"null")
        try:
            raise ApiError(status, json.loads(text))
        except json.JSONDecodeError:
            raise ApiError(status, {"message": text.decode(errors="replace")}) from None

    def _exchange(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str], timeout: float
    ) -> tuple[int, bytes]:
        while True:
            try:
                connection, kept = self._idle.pop(), True
            except IndexError:
                connection, kept = self._connection(), False
            connection.timeout = timeout
            if connection.sock is not None:
                connection.sock.settimeout(timeout)
            try:
                connection.request(method, path, body=data, headers=headers)
                answer = connection.getresponse()
                result = answer.status, answer.read()
            except BaseException as error:  # whatever it was: nobody knows what is still to come on this connection
                connection.close()
                if kept and isinstance(error, ConnectionError | ssl.SSLEOFError):
                    continue  # the server has closed it meanwhile, or was restarted
                raise
            self._idle.append(connection)
            return result

    def _connection(self) -> http.client.HTTPSConnection:
        if self._context is None:
            self._context = ssl.create_default_context(cafile=str(self.folder / "certs" / "apiserver.crt"))
        return http.client.HTTPSConnection("127.0.0.1", self.port, context=self._context)

    def create(self, path: str, body: Any) -> Any:
        return self.call("POST", path, body)

    def merge(self, path: str, body: Any) -> Any:
        return self.call("PATCH", path, body, "application/merge-patch+json")

    def restart_without(self, key: str) -> None:
        """Take the API server away, delete a key of etcd behind its back, forget all history, and bring it back: a gap
        in every watch, of which nobody can be told but by 410 Gone."""
        etcd, process = self.processes
        process.kill()
        process.wait(timeout=20)
        gone = self._etcd("deleterange", {"key": base64.b64encode(key.encode()).decode()})
        assert gone.get("deleted") == "1", f"{key} is not in etcd"
        self._etcd("compaction", {"revision": gone["header"]["revision"], "physical": True})
        self.processes = [etcd]
        self._again(process)

    def snapshot(self) -> Path:
        """What etcd has, as it lies on the disk at one moment."""
        etcd, copy = self.processes[0], self.folder / "snapshot"
        shutil.rmtree(copy, ignore_errors=True)
        etcd.send_signal(signal.SIGSTOP)
        try:
            shutil.copytree(self.folder / "etcd", copy)
        finally:
            etcd.send_signal(signal.SIGCONT)
        return copy

    def restore(self, snapshot: Path) -> None:
        """Etcd with what it had then, and an API server that never knew anything else."""
        before, self.processes = self.processes, []
        for process in reversed(before):
            process.kill()
            process.wait(timeout=20)
        shutil.rmtree(self.folder / "etcd")
        shutil.copytree(snapshot, self.folder / "etcd")
        for process in before:
            self._again(process)

    def _again(self, process: subprocess.Popen[bytes]) -> None:
        """Start anew what has ended; the API server last, which is waited for."""
        name = Path(cast(list[str], process.args)[0]).name
        with (self.folder / "logs" / f"{name}.log").open("ab") as out:
            again = subprocess.Popen(process.args, stdout=out, stderr=subprocess.STDOUT, cwd=self.folder)
        self.processes.append(again)
        if name == "kube-apiserver":
            self._wait(60)
            self.restarts.append(datetime.now(UTC))

    def _etcd(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.etcd_port}/v3/kv/{what}", data=json.dumps(body).encode()
        )
        with urllib.request.urlopen(request, timeout=10) as response:
            answer: dict[str, Any] = json.loads(response.read())
            return answer

    def just_restarted(self, at: datetime) -> bool:
        """An API server refuses rightful calls for a moment after its start, until it has read the roles."""
        return any(abs(at - restart) < timedelta(seconds=10) for restart in self.restarts)

    def start(self, bin_folder: Path, deadline_s: float = 60) -> None:
        logs = self.folder / "logs"
        logs.mkdir()
        self._spawn(
            logs / "etcd.log",
            [
                bin_folder / "etcd",
                f"--data-dir={self.folder / 'etcd'}",
                f"--listen-client-urls=http://127.0.0.1:{self.etcd_port}",
                f"--advertise-client-urls=http://127.0.0.1:{self.etcd_port}",
                f"--listen-peer-urls=http://127.0.0.1:{free_port()}",
                "--unsafe-no-fsync",
                "--log-level=error",
            ],
        )
        key = self.folder / "sa.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True, timeout=30)
        (self.folder / "tokens.csv").write_text(
            f'{TOKEN},admin,admin,"system:masters"\n{OPERATOR},{OPERATOR},{OPERATOR}\n{PERSON},{PERSON},{PERSON}\n'
        )
        self._spawn(
            logs / "kube-apiserver.log",
            [
                bin_folder / "kube-apiserver",
                f"--etcd-servers=http://127.0.0.1:{self.etcd_port}",
                "--bind-address=127.0.0.1",
                "--advertise-address=127.0.0.1",
                f"--secure-port={self.port}",
                f"--cert-dir={self.folder / 'certs'}",
                f"--token-auth-file={self.folder / 'tokens.csv'}",
                "--authorization-mode=RBAC",
                "--service-account-issuer=https://kubernetes",
                f"--service-account-key-file={key}",
                f"--service-account-signing-key-file={key}",
                "--service-cluster-ip-range=10.0.0.0/24",
                "--disable-admission-plugins=ServiceAccount",
                "--endpoint-reconciler-type=none",
                "--profiling=false",
                "--allow-privileged=true",
            ],
        )
        self._wait(deadline_s)
        self._kubeconfig(self.kubeconfig, TOKEN)
        self._kubeconfig(self.operators_kubeconfig, OPERATOR)

    def _kubeconfig(self, path: Path, token: str) -> None:
        ca = base64.b64encode((self.folder / "certs" / "apiserver.crt").read_bytes()).decode()
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "test",
                    "clusters": [{"name": "test", "cluster": {"server": self.url, "certificate-authority-data": ca}}],
                    "users": [{"name": "test", "user": {"token": token}}],
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
                }
            )
        )

    def _wait(self, deadline_s: float) -> None:
        end = time.monotonic() + deadline_s
        while True:
            try:
                if self.call("GET", "/readyz", timeout=2) is None:
                    raise AssertionError
            except json.JSONDecodeError:
                break  # /readyz answers "ok", which is no JSON.
            except (OSError, ApiError):
                pass
            dead = [p.args for p in self.processes if p.poll() is not None]
            if dead or time.monotonic() > end:
                tail = (self.folder / "logs" / "kube-apiserver.log").read_text()[-2000:]
                raise RuntimeError(
                    f"the API server is not ready after {deadline_s} s (ended: {dead}); its log ends:\n{tail}"
                )
            time.sleep(0.05)

    def _spawn(self, log: Path, argv: list[Any]) -> None:
        with log.open("wb") as out:
            self.processes.append(
                subprocess.Popen([str(a) for a in argv], stdout=out, stderr=subprocess.STDOUT, cwd=self.folder)
            )

    def stop(self) -> None:
        while self._idle:
            self._idle.pop().close()
        for process in reversed(self.processes):
            process.kill()
            process.wait(timeout=20)
        shutil.rmtree(self.folder, ignore_errors=True)


def launch(bin_folder: Path) -> ApiServer:
    server = ApiServer(Path(tempfile.mkdtemp(prefix="flashboot-apiserver-")), free_port(), free_port())
    try:
        server.start(bin_folder)
    except BaseException:  # whatever it was: nobody else will stop what runs already
        server.stop()
        raise
    return server
