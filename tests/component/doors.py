"""A node for the door's tests: kubelet's mount namespace, its sockets, and doors as real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

from flashboot_agent.door.proto import csi_pb2 as csi
from flashboot_agent.wire.door import DRIVER_NAME, PublishedPod

AGENT = 65532
UID = "3f1c9a52-8d5e-4f0b-9a53-0c1de5b2a001"
OTHER = "3f1c9a52-8d5e-4f0b-9a53-0c1de5b2a002"
POD = "csi.storage.k8s.io/pod."


def can_make_namespaces() -> bool:
    return (
        os.geteuid() == 0
        and subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode == 0
    )


needs_root = pytest.mark.skipif(not can_make_namespaces(), reason="needs root and mount namespaces (unshare -m)")


def context(uid: str = UID, **more: str) -> dict[str, str]:
    return {
        f"{POD}uid": uid,
        f"{POD}namespace": "tenant",
        f"{POD}name": f"engine-{uid[-1]}",
        "csi.storage.k8s.io/serviceAccount.name": "default",
        "csi.storage.k8s.io/ephemeral": "true",
        "flashboot.io/model-replica": "qwen",
        **more,
    }


class Client:
    """Calls over a unix socket, as kubelet makes them."""

    def __init__(self, path: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix://{path}")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def call(self, service: str, method: str, request: Any, reply: Any) -> Any:
        function = self._channel.unary_unary(
            f"/{service}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,
        )
        return function(request, timeout=20, wait_for_ready=True)

    def publish(self, target: Path | str, values: dict[str, str], volume_id: str = "csi-1") -> None:
        request = csi.NodePublishVolumeRequest(volume_id=volume_id, target_path=str(target), volume_context=values)
        self.call("csi.v1.Node", "NodePublishVolume", request, csi.NodePublishVolumeResponse)

    def unpublish(self, target: Path | str, volume_id: str = "csi-1") -> None:
        request = csi.NodeUnpublishVolumeRequest(volume_id=volume_id, target_path=str(target))
        self.call("csi.v1.Node", "NodeUnpublishVolume", request, csi.NodeUnpublishVolumeResponse)


class Node:
    """A node's mount namespace (kubelet's), with doors in containers of their own below it."""

    def __init__(self, folder: Path) -> None:
        self.kubelet, self.run = folder / "kubelet", folder / "run"
        self.kubelet.mkdir()
        self.run.mkdir()
        # As on a node: kubelet's folder is a shared mount, and what a container mounts there must come back here.
        script = f"mount -t tmpfs kubelet {self.kubelet} && mount --make-rshared {self.kubelet} && echo up && exec cat"
        self._holder = subprocess.Popen(
            ["unshare", "-m", "--propagation", "private", "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "up\n"
        self._doors: list[Door] = []

    @property
    def root(self) -> Path:
        """The file system as kubelet sees it."""
        return Path(f"/proc/{self._holder.pid}/root")

    def command(self, *arguments: str) -> list[str]:
        enter = ["nsenter", "-m", "-t", str(self._holder.pid), "unshare", "-m", "--propagation", "unchanged"]
        options = ["--kubelet", str(self.kubelet), "--run", str(self.run), "--node", "node-1"]
        return [*enter, sys.executable, "-m", "flashboot_agent.door", *arguments, *options]

    def start_door(self) -> Door:
        self._doors.append(Door(self))
        self._doors[-1].wait_for("serving")
        return self._doors[-1]

    def target(self, uid: str = UID, volume: str = "flashboot") -> Path:
        """Where kubelet wants the volume; it makes the parent."""
        target = self.kubelet / f"pods/{uid}/volumes/kubernetes.io~csi/{volume}/mount"
        self.seen(target.parent).mkdir(parents=True, exist_ok=True)
        return target

    def seen(self, path: Path) -> Path:
        return self.root / path.relative_to("/")

    def client(self) -> Client:
        return Client(self.seen(self.kubelet / f"plugins/{DRIVER_NAME}/csi.sock"))

    def registry(self) -> Client:
        return Client(self.seen(self.kubelet / f"plugins_registry/{DRIVER_NAME}-reg.sock"))

    def mounts_at(self, target: Path) -> list[list[str]]:
        """Options of each mount at a path, in kubelet's namespace."""
        lines = Path(f"/proc/{self._holder.pid}/mountinfo").read_text().splitlines()
        return [line.split()[5].split(",") for line in lines if line.split()[4] == str(target)]

    def pod_folder(self, uid: str = UID) -> Path:
        return self.run / "pods" / uid

    def meta(self, uid: str = UID) -> PublishedPod:
        return PublishedPod.model_validate_json((self.run / f"meta/{uid}.json").read_bytes())

    def everything(self) -> list[str]:
        """All that doors may leave behind on the node."""
        here = [str(p.relative_to(self.run)) for p in self.run.rglob("*")]
        pods = self.seen(self.kubelet / "pods")
        return sorted(here + [str(p.relative_to(pods)) for p in pods.rglob("mount")])

    def close(self) -> None:
        for door in self._doors:
            door.kill()
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._holder.stdin.close()
        self._holder.wait(20)
        self._holder.stdout.close()


class Door:
    def __init__(self, node: Node) -> None:
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            node.command(), stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}
        )
        self.lines: list[dict[str, Any]] = []

    def wait_for(self, event: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            line: dict[str, Any] = json.loads(text)
            self.lines.append(line)
            if line["event"] == event:
                return line
        raise AssertionError(f"the door ended without {event!r}; it said {self.lines}")

    def terminate(self) -> int:
        self._process.terminate()
        self.wait_for("leaving")
        return self._process.wait(20)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(20)
        assert self._process.stdout is not None
        self._process.stdout.close()
