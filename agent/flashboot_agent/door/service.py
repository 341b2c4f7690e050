"""The door's two gRPC servers: CSI Identity and Node for volumes, and Registration for kubelet's plug-in watcher.

What always holds: a bad request gets INVALID_ARGUMENT with the reason, a failing system call INTERNAL with its name,
and both are logged; once `finish` was called no new call begins, and `finish` returns when the last one has ended. The
servers are never stopped: stopping unlinks their sockets *by path*, which after a rolling update are the next door's.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import threading
import time
from collections.abc import Callable
from concurrent import futures
from importlib import metadata
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import grpc

from flashboot_agent.door.health import ASK_SECONDS
from flashboot_agent.door.proto import csi_pb2 as csi
from flashboot_agent.door.proto import pluginregistration_pb2 as registration
from flashboot_agent.door.volume import BadVolume, Volumes
from flashboot_agent.logs import Log
from flashboot_agent.wire.door import DRIVER_NAME

log = Log(__name__)

Request = TypeVar("Request")
Reply = TypeVar("Reply")

Handler: TypeAlias = "grpc.GenericRpcHandler[Any, Any]"

CSI_VERSIONS: Final = ["1.0.0"]
"""Versions of CSI that kubelet may speak with us; its own check is on the major number."""


class DoorService:
    """Makes the handlers; counts the calls in flight."""

    def __init__(self, node: str, volumes: Volumes, csi_socket: Path) -> None:
        self._node = node
        self._volumes = volumes
        self._csi_socket = csi_socket
        self._calls = threading.Condition()
        self._in_flight = 0
        self._finishing = False
        self._servers: list[grpc.Server] = []  # held, since gRPC stops a server that nobody holds

    def serve(self, registry_socket: Path) -> None:
        """Listen: first for volumes, then for kubelet's watcher, so that whoever is told of us can call us.

        Raises OSError when a socket can't be bound."""
        for path, handlers in (
            (self._csi_socket, [self._identity_handlers(), self._node_handlers()]),
            (registry_socket, [self._registration_handlers()]),
        ):
            self._servers.append(_listen(path, handlers))

    def finish(self, patience: float) -> bool:
        """Refuse new calls and wait for those in flight. Returns False when some are left after `patience` seconds."""
        with self._calls:
            self._finishing = True
            return self._calls.wait_for(lambda: self._in_flight == 0, patience)

    def stop(self) -> None:
        """For tests: this unlinks the sockets by path."""
        for server in self._servers:
            server.stop(0).wait(10)

    def ask_itself(self) -> None:
        """Call Probe over the socket that kubelet uses. Raises OSError when no answer comes in time."""
        with grpc.insecure_channel(f"unix://{self._csi_socket}") as channel:
            probe = channel.unary_unary(
                "/csi.v1.Identity/Probe",
                request_serializer=csi.ProbeRequest.SerializeToString,
                response_deserializer=csi.ProbeResponse.FromString,
            )
            try:
                probe(csi.ProbeRequest(), timeout=ASK_SECONDS)
            except grpc.RpcError as error:
                raise OSError(f"Probe over {self._csi_socket}: {error.details()}") from None

    # Identity

    def _identity_handlers(self) -> Handler:
        def info(_: csi.GetPluginInfoRequest) -> csi.GetPluginInfoResponse:
            return csi.GetPluginInfoResponse(name=DRIVER_NAME, vendor_version=_version())

        return self._handlers(
            "csi.v1.Identity",
            {
                "GetPluginInfo": (info, csi.GetPluginInfoRequest),
                "GetPluginCapabilities": (
                    lambda _: csi.GetPluginCapabilitiesResponse(),
                    csi.GetPluginCapabilitiesRequest,
                ),
                "Probe": (lambda _: csi.ProbeResponse(), csi.ProbeRequest),
            },
        )

    # Node

    def _node_handlers(self) -> Handler:
        return self._handlers(
            "csi.v1.Node",
            {
                "NodePublishVolume": (self._publish, csi.NodePublishVolumeRequest),
                "NodeUnpublishVolume": (self._unpublish, csi.NodeUnpublishVolumeRequest),
                "NodeGetCapabilities": (lambda _: csi.NodeGetCapabilitiesResponse(), csi.NodeGetCapabilitiesRequest),
                "NodeGetInfo": (lambda _: csi.NodeGetInfoResponse(node_id=self._node), csi.NodeGetInfoRequest),
            },
        )

    def _publish(self, request: csi.NodePublishVolumeRequest) -> csi.NodePublishVolumeResponse:
        began = time.monotonic()
        _require_id(request.volume_id)
        pod, new = self._volumes.publish(request.target_path, request.volume_context)
        log.info(
            "volume published" if new else "volume published again",
            pod=f"{pod.namespace}/{pod.name}",
            uid=pod.uid,
            modelReplica=pod.model_replica,
            milliseconds=round((time.monotonic() - began) * 1000, 1),
        )
        return csi.NodePublishVolumeResponse()

    def _unpublish(self, request: csi.NodeUnpublishVolumeRequest) -> csi.NodeUnpublishVolumeResponse:
        _require_id(request.volume_id)
        uid = self._volumes.unpublish(request.target_path)
        log.info("volume unpublished", uid=uid)
        return csi.NodeUnpublishVolumeResponse()

    # Registration with kubelet

    def _registration_handlers(self) -> Handler:
        def info(_: registration.InfoRequest) -> registration.PluginInfo:
            return registration.PluginInfo(
                type="CSIPlugin",
                name=DRIVER_NAME,
                endpoint=str(self._csi_socket),
                supported_versions=CSI_VERSIONS,
            )

        def status(request: registration.RegistrationStatus) -> registration.RegistrationStatusResponse:
            if request.plugin_registered:
                log.info("kubelet registered the driver", driver=DRIVER_NAME)
            else:
                log.error("kubelet refused to register the driver", driver=DRIVER_NAME, error=request.error)
            return registration.RegistrationStatusResponse()

        return self._handlers(
            "pluginregistration.Registration",
            {
                "GetInfo": (info, registration.InfoRequest),
                "NotifyRegistrationStatus": (status, registration.RegistrationStatus),
            },
        )

    # Common to all calls

    def _handlers(self, service: str, methods: dict[str, tuple[Callable[[Any], Any], Any]]) -> Handler:
        return grpc.method_handlers_generic_handler(
            service,
            {
                name: grpc.unary_unary_rpc_method_handler(
                    functools.partial(self._call, name, method),
                    request_deserializer=request.FromString,
                    response_serializer=lambda reply: reply.SerializeToString(),
                )
                for name, (method, request) in methods.items()
            },
        )

    def _call(
        self, name: str, method: Callable[[Request], Reply], request: Request, context: grpc.ServicerContext
    ) -> Reply:
        with self._calls:
            refuse = self._finishing
            self._in_flight += not refuse
        if refuse:
            context.abort(grpc.StatusCode.UNAVAILABLE, "this door is closing; the next one serves in a moment")
        try:
            return method(request)
        except BadVolume as error:
            log.warning("bad request", call=name, error=str(error))
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise  # abort raises itself; this says so to type checkers
        except OSError as error:
            log.error("call failed", call=name, error=str(error))
            context.abort(grpc.StatusCode.INTERNAL, f"{name} on node {self._node}: {error}")
            raise
        finally:
            with self._calls:
                self._in_flight -= 1
                self._calls.notify_all()


def _version() -> str:
    try:
        return metadata.version("flashboot")
    except metadata.PackageNotFoundError:  # run from a checkout
        return "0.0.0"


def _require_id(volume_id: str) -> None:
    if not volume_id:
        raise BadVolume("volume_id is empty")


def _listen(path: Path, handlers: list[Handler]) -> grpc.Server:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Left over from a door that died, or of the door that we replace: it serves its calls to the end without the path.
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise OSError(f"{path} is there and is no socket; remove it")
        path.unlink()
    server = grpc.server(futures.ThreadPoolExecutor(8, thread_name_prefix="door"), handlers=handlers)
    try:
        server.add_insecure_port(f"unix://{path}")
    except RuntimeError as error:  # gRPC says why on stderr only, such as a path above the kernel's 107 characters
        raise OSError(f"could not listen at {path}: {error}") from error
    os.chmod(path, 0o600)
    server.start()
    return server
