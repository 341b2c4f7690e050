"""The door as kubelet sees it: a real process, real gRPC over its sockets, real mounts in a namespace of their own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from flashboot_agent.door import __main__ as main
from flashboot_agent.door import health
from flashboot_agent.door.folders import PodFolders
from flashboot_agent.door.proto import csi_pb2 as csi
from flashboot_agent.door.proto import pluginregistration_pb2 as registration
from flashboot_agent.door.service import DoorService
from flashboot_agent.wire.door import DRIVER_NAME, PublishedPod
from tests.component.doors import AGENT, OTHER, POD, UID, Client, Node, context, needs_root


@pytest.fixture
def node() -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="fb") as folder:  # short: a socket's path has at most 107 characters
        made = Node(Path(folder))
        try:
            yield made
        finally:
            made.close()


@needs_root
def test_kubelet_registers_it(node: Node) -> None:
    door = node.start_door()
    with node.registry() as registry, node.client() as client:
        info = registry.call(
            "pluginregistration.Registration", "GetInfo", registration.InfoRequest(), registration.PluginInfo
        )
        assert (info.type, info.name, list(info.supported_versions)) == ("CSIPlugin", DRIVER_NAME, ["1.0.0"])
        assert info.endpoint == str(node.kubelet / f"plugins/{DRIVER_NAME}/csi.sock")
        plugin = client.call("csi.v1.Identity", "GetPluginInfo", csi.GetPluginInfoRequest(), csi.GetPluginInfoResponse)
        assert plugin.name == info.name
        assert plugin.vendor_version
        where = client.call("csi.v1.Node", "NodeGetInfo", csi.NodeGetInfoRequest(), csi.NodeGetInfoResponse)
        assert where.node_id == "node-1"
        status = registration.RegistrationStatus(plugin_registered=True)
        registry.call(
            "pluginregistration.Registration",
            "NotifyRegistrationStatus",
            status,
            registration.RegistrationStatusResponse,
        )
        assert door.wait_for("kubelet registered the driver")["driver"] == DRIVER_NAME


@needs_root
def test_a_published_pod_meets_the_agent_in_its_folder(node: Node) -> None:
    door, target = node.start_door(), node.target()
    with node.client() as client:
        client.publish(target, context())
    line = door.wait_for("volume published")
    assert (line["pod"], line["uid"], line["modelReplica"]) == ("tenant/engine-1", UID, "qwen")

    pod = node.meta()
    assert (pod.uid, pod.namespace, pod.name) == (UID, "tenant", "engine-1")
    assert (pod.service_account, pod.model_replica) == ("default", "qwen")
    status = node.pod_folder().stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (AGENT, AGENT, 0o755)
    for ours in ("pods", "meta"):
        status = (node.run / ours).stat()
        assert (status.st_uid, status.st_mode & 0o777) == (0, 0o755), "the agent lists it and can't write there"

    assert [set(options) & {"ro", "nosuid", "nodev", "noexec"} for options in node.mounts_at(target)] == [
        {"ro", "nosuid", "nodev", "noexec"}
    ], "read-only in kubelet's namespace too"
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as agent,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as engine,
    ):
        agent.bind(str(node.pod_folder() / "agent.sock"))
        agent.listen()
        shown = os.open(node.seen(target), os.O_PATH)  # the path itself is longer than a socket's may be
        engine.connect(f"/proc/self/fd/{shown}/agent.sock")
        os.close(shown)
    with pytest.raises(OSError, match="Read-only"):
        (node.seen(target) / "file").write_text("x")
    with pytest.raises(OSError, match="Read-only"):
        (node.seen(target) / "agent.sock").unlink()


@needs_root
def test_unpublish_leaves_nothing_and_may_come_again(node: Node) -> None:
    node.start_door()
    target = node.target()
    with node.client() as client:
        before = node.everything()
        client.publish(target, context())
        (node.pod_folder() / "agent.sock").write_text("stands for the agent's socket")
        with (node.seen(target) / "agent.sock").open():  # still in use: detached, not waited for
            for _ in range(2):
                client.unpublish(target)
        assert node.mounts_at(target) == []
        assert node.everything() == before
        client.unpublish(node.target(OTHER))  # never published: nothing to do


@needs_root
def test_publishing_again_changes_nothing(node: Node) -> None:
    """A restarted kubelet publishes again for all running pods."""
    node.start_door()
    target = node.target()
    with node.client() as client:
        client.publish(target, context())
        (node.pod_folder() / "agent.sock").write_text("")
        first = node.meta()
        client.publish(target, context())
        assert node.meta() == first
        assert len(node.mounts_at(target)) == 1
        assert (node.seen(target) / "agent.sock").exists()


@needs_root
def test_parallel_publishes_and_unpublishes(node: Node) -> None:
    node.start_door()
    uids = [f"{UID[:-3]}{i:03d}" for i in range(24)]
    targets = {uid: node.target(uid) for uid in uids}
    with node.client() as client, ThreadPoolExecutor(16) as pool:
        before = node.everything()
        list(pool.map(lambda uid: client.publish(targets[uid], context(uid)), uids * 3))
        assert all(len(node.mounts_at(target)) == 1 for target in targets.values())
        assert sorted(path.name for path in (node.run / "pods").iterdir()) == uids
        list(pool.map(lambda uid: client.unpublish(targets[uid]), uids * 2))
        assert node.everything() == before


@needs_root
def test_two_volumes_of_one_pod_share_its_folder(node: Node) -> None:
    node.start_door()
    one, two = node.target(volume="one"), node.target(volume="two")
    with node.client() as client:
        for target in (one, two):
            client.publish(target, context())
        client.unpublish(one)
        assert node.pod_folder().is_dir()
        assert node.meta().uid == UID
        client.unpublish(two)
        assert not node.pod_folder().exists()


@needs_root
def test_bad_requests_are_refused_and_change_nothing(node: Node) -> None:
    door, good = node.start_door(), node.target()
    without_uid = {key: value for key, value in context().items() if key != f"{POD}uid"}
    cases: list[tuple[str, dict[str, str], str, str]] = [
        (str(good), context(OTHER), "csi-1", "the volume context names pod"),
        (str(good), without_uid, "csi-1", "podInfoOnMount"),
        (str(good), context(**{f"{POD}name": "No_Name"}), "csi-1", f"{POD}name is 'No_Name'"),
        (str(good), context(**{"flashboot.io/model-replica": "../x"}), "csi-1", "flashboot.io/model-replica is '../x'"),
        (str(good), context(**{"csi.storage.k8s.io/ephemeral": "false"}), "csi-1", "only inline volumes"),
        (str(good), context(), "", "volume_id is empty"),
        ("", context(), "csi-1", "not the place of an inline volume"),
        ("/etc", context(), "csi-1", "not the place of an inline volume"),
        (f"{good}/../mount", context(), "csi-1", "not the place of an inline volume"),
        (str(good).replace("/flashboot/", "/../"), context(), "csi-1", "not the place of an inline volume"),
        (str(good) + "\n", context(), "csi-1", "not the place of an inline volume"),
    ]
    before = node.everything()
    with node.client() as client:
        for target, values, volume_id, message in cases:
            with pytest.raises(grpc.RpcError) as refused:
                client.publish(target, values, volume_id)
            assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert message in (refused.value.details() or "")
            assert message in door.wait_for("bad request")["error"]
        with pytest.raises(grpc.RpcError) as refused:
            client.unpublish("/etc")
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert node.everything() == before


@needs_root
def test_a_failing_system_call_is_told_to_kubelet(node: Node) -> None:
    door, target = node.start_door(), node.target()
    node.seen(target).write_text("a file where the mount point should be")
    with node.client() as client:
        with pytest.raises(grpc.RpcError) as failed:
            client.publish(target, context())
        assert failed.value.code() == grpc.StatusCode.INTERNAL
        assert "node-1" in (failed.value.details() or "")
        assert str(target) in door.wait_for("call failed")["error"]
        node.seen(target).unlink()
        client.publish(target, context())  # kubelet tries again, and it is put right
        assert len(node.mounts_at(target)) == 1


@needs_root
def test_a_killed_door_leaves_running_pods_alone_and_the_next_one_goes_on(node: Node) -> None:
    first, target = node.start_door(), node.target()
    with node.client() as client:
        client.publish(target, context())
    first.kill()
    (node.run / "pods" / f"{OTHER}.tmp").mkdir()  # as if it had died in the middle of others
    (node.run / "pods" / f"{OTHER}.gone").mkdir()
    (node.run / "meta" / f".{OTHER}.tmp").write_text("{")
    assert len(node.mounts_at(target)) == 1
    node.start_door()
    with node.client() as client:
        client.publish(target, context())
        assert len(node.mounts_at(target)) == 1
        client.publish(node.target(OTHER), context(OTHER))
        for uid in (UID, OTHER):
            client.unpublish(node.target(uid))
        assert node.everything() == ["meta", "pods"]


@needs_root
def test_a_rolling_update_never_takes_the_next_doors_sockets(node: Node) -> None:
    old = node.start_door()
    node.start_door()
    assert old.terminate() == 0
    with node.client() as client, node.registry() as registry:
        client.publish(node.target(), context())
        registry.call("pluginregistration.Registration", "GetInfo", registration.InfoRequest(), registration.PluginInfo)


@needs_root
def test_healthcheck(node: Node) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}

    def check() -> subprocess.CompletedProcess[str]:
        command = node.command("healthcheck")
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)

    away = check()
    assert away.returncode == 1
    assert "the door does not answer at" in away.stderr
    door = node.start_door()
    assert check().returncode == 0
    door.kill()
    assert check().returncode == 1


def test_the_healthcheck_stays_cheap() -> None:
    """On a busy node a probe that imports gRPC takes longer than its timeout, and kills a healthy door."""
    code = "import sys, flashboot_agent.door.__main__; print(*(set(sys.modules) & {'grpc', 'pydantic', 'google'}))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip() == ""
    assert f"plugins/{DRIVER_NAME}" == main.PLUGIN


def test_the_health_socket_tells_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    service = DoorService("node-1", SlowVolumes(), tmp_path / "csi.sock")  # type: ignore[arg-type]
    service.serve(tmp_path / "reg.sock")
    health_socket = health.HealthSocket(tmp_path / health.SOCKET, service.ask_itself)
    assert health.ask(tmp_path / health.SOCKET) == 0
    service.finish(1)
    assert health.ask(tmp_path / health.SOCKET) == 1
    assert "this door is closing" in capsys.readouterr().err
    health_socket.close()
    service.stop()


# In this process, without mounts


class SlowVolumes:
    """Holds a publish until the test lets it go."""

    def __init__(self) -> None:
        self.inside, self.go = threading.Event(), threading.Event()

    def publish(self, target: str, values: dict[str, str]) -> tuple[PublishedPod, bool]:
        self.inside.set()
        assert self.go.wait(20)
        from flashboot_agent.door.volume import published_pod

        return published_pod(values), True


def test_calls_in_flight_end_before_the_door_leaves(tmp_path: Path) -> None:
    volumes = SlowVolumes()
    service = DoorService("node-1", volumes, tmp_path / "csi.sock")  # type: ignore[arg-type]
    service.serve(tmp_path / "reg.sock")
    with Client(tmp_path / "csi.sock") as client, ThreadPoolExecutor(2) as pool:
        slow = pool.submit(client.publish, "/target", context())
        assert volumes.inside.wait(20)
        assert service.finish(0.05) is False
        with pytest.raises(grpc.RpcError) as refused:
            client.publish("/target", context())
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
        leaving = pool.submit(service.finish, 20)
        volumes.go.set()
        slow.result(20)
        assert leaving.result(20) is True
    service.stop()


def test_a_file_in_the_sockets_place_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "csi.sock").write_text("precious")
    service = DoorService("node-1", SlowVolumes(), tmp_path / "csi.sock")  # type: ignore[arg-type]
    with pytest.raises(OSError, match="no socket"):
        service.serve(tmp_path / "reg.sock")
    assert (tmp_path / "csi.sock").read_text() == "precious"


def test_removal_survives_an_agent_that_still_binds(tmp_path: Path) -> None:
    """Somebody goes on making files by the folder's path while it is removed."""
    folders = PodFolders(tmp_path, None)
    folders.prepare()
    pod = PublishedPod.model_validate(
        {"uid": UID, "namespace": "a", "name": "b", "service_account": "c", "published_at": "2026-01-01T00:00:00Z"}
    )
    folders.put(pod)
    ended = threading.Event()

    def bind() -> None:
        count = 0
        while not ended.is_set():
            count += 1
            with contextlib.suppress(OSError):
                (folders.folder(UID) / f"{count}.sock").touch()

    thread = threading.Thread(target=bind)
    thread.start()
    try:
        deadline = time.monotonic() + 20
        while not list(folders.folder(UID).glob("*.sock")):
            assert time.monotonic() < deadline
        folders.remove(UID)
    finally:
        ended.set()
        thread.join(20)
    assert list((tmp_path / "pods").iterdir()) == list((tmp_path / "meta").iterdir()) == []
