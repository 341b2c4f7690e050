"""A mini cluster of real holders and agents on loopback, for tests: one run folder per node, an address per node.

The test stands in for the door (files in the run folder), for the operator (HTTP) and for the engine (the attach
protocol over the pod's socket, real memfds). Nothing here sleeps for luck: `eventually` waits for a condition.

Without TLS, unless a node is given an `Issuer` (tests/component/trust.py): then `call` comes as the operator, and the
node is enrolled unless an operator shall do that.
"""

from __future__ import annotations

import array
import http.client
import json
import mmap
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from flashboot_agent.core.identity import arena_id, digest_of
from flashboot_agent.memory import memfd
from flashboot_agent.wire import attach
from flashboot_agent.wire.arena import Peer
from flashboot_agent.wire.base import now
from flashboot_agent.wire.desired import Desired, Role, WantedArena
from flashboot_agent.wire.door import PublishedPod
from flashboot_agent.wire.layout import Layout
from flashboot_agent.wire.layout_entries import Binding, Segment, Storage, TensorView
from flashboot_agent.wire.observed import Observed
from flashboot_agent.wire.observed_arena import ObservedArena
from flashboot_agent.wire.observed_pod import ObservedPod
from flashboot_agent.wire.place import Place
from tests.component.nursery import Forked, nursery
from tests.component.trust import Issuer

AGENT_FOLDER = Path(__file__).resolve().parents[2] / "agent"
MIB = 1 << 20
SECONDS = 40.0
"""Of any wait: generous, since a test machine may be busy; nothing waits longer than it must."""
IDENTITY = {"model": "tiny", "revision": "r1", "dtype": "bfloat16"}
EXPECTED = digest_of({"template": "t1"})
REPLICA_UID = "11111111-2222-3333-4444-555555555555"
ARENA = arena_id(REPLICA_UID, EXPECTED, Place())

T = TypeVar("T")
Process = subprocess.Popen[bytes] | Forked


def eventually(look: Callable[[], T | None], what: str, seconds: float = SECONDS) -> T:
    """The first true value of `look`, asked again and again; a message that names what never came."""
    end = time.monotonic() + seconds
    last: BaseException | None = None
    while True:
        try:
            if value := look():
                return value
        except (AssertionError, OSError, LookupError) as error:
            last = error
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what} ({last})"
        time.sleep(0.02)  # between two looks


def wanted(role: Role, *, arena: str = ARENA, **facts: Any) -> WantedArena:
    """A wanted arena of the one ModelReplica that these tests know."""
    return WantedArena(
        arena=arena,
        namespace="serving",
        model_replica="tiny",
        model_replica_uid=REPLICA_UID,
        expected_identity=EXPECTED,
        role=role,
        **facts,
    )


def layout_for(nbytes: int, identity: dict[str, str] | None = None) -> bytes:
    """A layout of one tensor that fills the arena."""
    return Layout(
        identity=IDENTITY if identity is None else identity,
        arena_bytes=nbytes,
        segments=[Segment(offset=0, bytes=nbytes)],
        storages=[Storage(offset=0, bytes=nbytes)],
        tensors=[TensorView(0, 0, (nbytes,), (1,), "uint8", parameter=True, cls="Parameter")],
        bindings=[Binding(module="", attribute="weight", kind="parameter", tensor=0)],
    ).to_bytes()


class NamedConnection(http.client.HTTPSConnection):
    """To an address, checked by a name."""

    def __init__(self, address: str, name: str, context: ssl.SSLContext, timeout: float) -> None:
        super().__init__(address, 9440, timeout=timeout)
        self._of, self._name = context, name

    def connect(self) -> None:
        plain = socket.create_connection((self.host, self.port), self.timeout)
        self.sock = self._of.wrap_socket(plain, server_hostname=self._name)


def mapped(fd: int, access: int) -> mmap.mmap:
    """All of a memfd, whole pages: a part of a huge page could not be unmapped."""
    return mmap.mmap(fd, os.fstat(fd).st_size, prot=access)


class Node:
    """One node: a holder and an agent, started and killed at will."""

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        budget: int = 1 << 30,
        issuer: Issuer | None = None,
        enrolled: bool = True,
        env: dict[str, str] | None = None,
        forked: bool = False,
    ) -> None:
        """`env`: of its agent, beside what every agent has. `forked`: its processes come from the nursery."""
        self.forked = forked
        self.name = name
        self.env = env or {}
        self.issuer = issuer
        self.run = folder / name
        for part in ("pods", "meta"):
            (self.run / part).mkdir(parents=True)
        self.budget = budget
        octets = uuid.uuid4().bytes
        self.ip = f"127.{octets[0] or 1}.{octets[1]}.{octets[2] or 1}"
        self.prefix: list[str] = []
        """Words before each command, such as those that enter a network namespace."""
        self.holder: Process | None = None
        self.agent: Process | None = None
        self.log = self.run / "agent.log"
        self.epoch, self.revision = 1, 0
        self.context: ssl.SSLContext | None = None
        if issuer is not None:
            self.ca_file.write_bytes(issuer.ca)
            self.context = issuer.operator_context() if enrolled else issuer.bootstrap_context()
        if issuer is not None and enrolled:
            issuer.keep(name, self.run / "agent")

    @property
    def ca_file(self) -> Path:
        return self.run / "ca.crt"

    @property
    def token_file(self) -> Path:
        return self.run / "token"

    @property
    def peer(self) -> Peer:
        return Peer(node=self.name, address=f"{self.ip}:9441")

    def start_holder(self) -> None:
        self.holder = self._start("flashboot_agent.holder", ["--budget-bytes", str(self.budget)], "holder.log")
        eventually((self.run / "holder/holder.sock").exists, f"holder of {self.name}")

    def start_agent(self, *, until: int = 200, **env: str) -> None:
        self.agent = self._start("flashboot_agent.node", [], "agent.log", **env)
        eventually(lambda: self.get("/readyz")[0] == until, f"{until} from /readyz of the agent of {self.name}")

    def kill_agent(self) -> None:
        assert self.agent is not None
        self.agent.kill()
        self.agent.wait(10)

    def kill_holder(self) -> None:
        assert self.holder is not None
        self.holder.kill()
        self.holder.wait(10)

    def stop(self) -> None:
        """The agent must end cleanly on SIGTERM, the holder too."""
        for process in (self.agent, self.holder):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
                try:
                    code = process.wait(15)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait(10)
                    raise
                assert code == 0, f"{process.args!r} of {self.name} ended with {code}"

    # The operator

    def call(self, method: str, path: str, body: bytes | None = None, timeout: float = 30) -> tuple[int, bytes]:
        """Over TLS with `context`."""
        if self.context is None:
            link = http.client.HTTPConnection(self.ip, 9440, timeout=timeout)
        else:
            link = NamedConnection(self.ip, self.name, self.context, timeout)
        with closing(link):
            link.request(method, path, body)
            answer = link.getresponse()
            return answer.status, answer.read()

    def get(self, path: str, timeout: float = 30) -> tuple[int, bytes]:
        return self.call("GET", path, timeout=timeout)

    def want(self, *arenas: WantedArena, ttl: int = 600) -> None:
        """PUT the next revision of the desired state."""
        self.revision += 1
        desired = Desired(
            epoch=self.epoch, revision=self.revision, node=self.name, ttl_seconds=ttl, arenas=list(arenas)
        )
        status, body = self.call("PUT", "/v1/desired", desired.to_json())
        assert status == 200, body

    def observed(self) -> Observed:
        return Observed.model_validate_json(self.get("/v1/observed")[1])

    def arena(self, name: str = ARENA) -> ObservedArena | None:
        status, body = self.get(f"/v1/arenas/{name}")
        return ObservedArena.model_validate_json(body) if status == 200 else None

    def until_arena(self, look: Callable[[ObservedArena], object], what: str, name: str = ARENA) -> ObservedArena:
        def check() -> ObservedArena | None:
            arena = self.arena(name)
            assert arena is not None, f"{self.name} has no {name}"
            assert look(arena), f"{self.name}: {arena!r}"
            return arena

        return eventually(check, f"{what} on {self.name}")

    def until_sealed(self, name: str = ARENA) -> ObservedArena:
        return self.until_arena(lambda arena: arena.state == "sealed", "sealed", name)

    def pod(self, uid: str) -> ObservedPod | None:
        return next((pod for pod in self.observed().pods if pod.uid == uid), None)

    # The door

    def publish(self, model_replica: str | None = "tiny") -> str:
        uid = str(uuid.uuid4())
        (self.run / "pods" / uid).mkdir()
        pod = PublishedPod(
            uid=uid,
            namespace="serving",
            name=f"tiny-{uid[:5]}",
            service_account="default",
            model_replica=model_replica,
            published_at=now(),
        )
        meta = self.run / "meta" / f"{uid}.json"
        meta.with_suffix(".tmp").write_bytes(pod.to_json())
        meta.with_suffix(".tmp").rename(meta)
        return uid

    def unpublish(self, uid: str) -> None:
        (self.run / "meta" / f"{uid}.json").unlink()
        shutil.rmtree(self.run / "pods" / uid)

    def clear(self) -> None:
        """Take away every pod and every wish; nothing may be left then, and both processes must live."""
        self.want()
        for meta in (self.run / "meta").glob("*.json"):
            self.unpublish(meta.stem)
        eventually(lambda: self.held() == 0 and not self.memory_files(), f"nothing left on {self.name}")
        eventually(lambda: not (seen := self.observed()).pods and not seen.arenas, f"nothing seen on {self.name}")

    @contextmanager
    def engine(self, uid: str, **hello: Any) -> Iterator[Engine]:
        engine = Engine(self.run / "pods" / uid / attach.SOCKET_NAME)
        try:
            if hello.pop("greet", True):
                engine.hello(**hello)
            yield engine
        finally:
            engine.close()

    # What is left

    def memory_files(self) -> list[str]:
        """memfds of arenas that the holder or the agent still has open or mapped."""
        found: list[str] = []
        for process in (self.holder, self.agent):
            if process is None or process.poll() is not None:
                continue
            proc = Path(f"/proc/{process.pid}")
            for fd in (proc / "fd").iterdir():
                with suppress(OSError):
                    found.append(os.readlink(fd))
            found += (proc / "maps").read_text().splitlines()
        return [line for line in found if "memfd:flashboot" in line]

    def held(self) -> int:
        """Arenas in the holder."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.settimeout(SECONDS)
            client.connect(str(self.run / "holder/holder.sock"))
            client.send(b'{"op": "stats"}')
            return int(json.loads(client.recv(65536))["arenas"])

    def _start(self, module: str, args: list[str], log: str, **env: str) -> Process:
        environment = {
            **os.environ,
            "PYTHONPATH": str(AGENT_FOLDER),
            "FLASHBOOT_NODE_NAME": self.name,
            "FLASHBOOT_POD_IP": self.ip,
            "FLASHBOOT_BIND": self.ip,
            "FLASHBOOT_RUN": str(self.run),
            "FLASHBOOT_TLS": "off" if self.issuer is None else "mutual",
            "FLASHBOOT_CA_FILE": str(self.ca_file),
            "FLASHBOOT_TOKEN_FILE": str(self.token_file),
            "FLASHBOOT_UPDATES": str(self.run / "updates"),
            **self.env,
            **env,
        }
        if self.forked:
            return nursery().start(module, args, environment, self.run / log)
        with open(self.run / log, "ab") as out:
            command = [*self.prefix, sys.executable, "-m", module, *args]
            return subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)


class Cluster:
    """Nodes that end with the test."""

    def __init__(self, *, forked: bool = True) -> None:
        """`forked`: as for Node; a benchmark measures programs that were started in the ordinary way."""
        self.forked = forked
        # Not pytest's folder: the path of a unix socket has at most 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="flashboot-"))
        self.nodes: dict[str, Node] = {}

    def node(self, name: str, *, start: bool = True, **facts: Any) -> Node:
        """`facts`: as for Node."""
        node = self.nodes[name] = Node(name, self.folder, forked=self.forked, **facts)
        if start:
            node.start_holder()
            node.start_agent()
        return node

    def close(self) -> None:
        for node in self.nodes.values():
            node.stop()
        shutil.rmtree(self.folder)

    def logs(self) -> str:
        return "\n".join(
            f"--- {node.name}\n{node.log.read_text()}" for node in self.nodes.values() if node.log.exists()
        )


class Engine:
    """The plug-in's side of wire/attach.py, as a client that a test drives step by step."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(SECONDS)

        def connected() -> bool:
            self.sock.connect(str(path))
            return True

        eventually(connected, f"socket {path}")

    def close(self) -> None:
        self.sock.close()

    def send(self, message: Any, *fds: int) -> None:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.sock.sendmsg([message.to_json() if hasattr(message, "to_json") else message], ancillary)

    def receive(self) -> tuple[Any, list[int]]:
        data, fds, _, _ = socket.recv_fds(self.sock, attach.MAX_MESSAGE, 8)
        assert data, "the agent closed the connection"
        return attach.from_agent.validate_json(data), fds

    def closed(self) -> bool:
        return self.sock.recv(attach.MAX_MESSAGE) == b""

    def hello(self, **facts: Any) -> None:
        self.send(attach.Hello(**{"identity": IDENTITY, **facts}))

    def until(self, kind: type[T]) -> tuple[T, list[int]]:
        """Skip `coming` until something else comes, which must be a `kind`."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            message, fds = self.receive()
            if isinstance(message, kind):
                return message, fds
            assert isinstance(message, attach.Coming), f"expected {kind.__name__}, got {message!r}"
        raise AssertionError(f"no {kind.__name__} within {SECONDS} s")

    def allocate(self, nbytes: int) -> int:
        """Wait to be elected. Returns the descriptor of the writable arena."""
        self.until(attach.Seed)
        return self._granted(nbytes)

    def _granted(self, nbytes: int) -> int:
        self.send(attach.Allocate(bytes=nbytes))
        message, fds = self.receive()
        assert isinstance(message, attach.Writable), message
        os.close(fds[1])
        return fds[0]

    def commit(self, layout: bytes) -> None:
        fd = memfd.sealed_copy("layout", layout)
        self.send(attach.Commit(), fd)
        os.close(fd)

    def fill(self, data: bytes) -> None:
        """Be the seed that was just elected, up to the commit."""
        self._write(self._granted(len(data)), data)

    def seed(self, data: bytes, identity: dict[str, str] | None = None) -> attach.Ready:
        """Be the seed from start to end."""
        self._write(self.allocate(len(data)), data)
        self.commit(layout_for(len(data), identity))
        ready, fds = self.until(attach.Ready)
        for each in fds:
            os.close(each)
        self.send(attach.Attached())
        return ready

    def read(self, ready: attach.Ready, fds: list[int]) -> bytes:
        """All of the arena that was just handed over; attached then."""
        with mapped(fds[0], mmap.PROT_READ) as arena:
            data = arena[: ready.bytes]
        for fd in fds:
            os.close(fd)
        self.send(attach.Attached())
        return data

    def attach(self) -> tuple[attach.Ready, bytes]:
        """Wait until ready and read all of the arena."""
        ready, fds = self.until(attach.Ready)
        return ready, self.read(ready, fds)

    def _write(self, fd: int, data: bytes) -> None:
        with mapped(fd, mmap.PROT_READ | mmap.PROT_WRITE) as arena:
            arena[: len(data)] = data
        os.close(fd)
