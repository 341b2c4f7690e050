"""What publishing and unpublishing a volume means, without gRPC.

What always holds: every call is idempotent and may run beside others, also after a crash in any line; a bad request
changes nothing; no call waits for the agent, the holder, the operator or the network, so that a pod is never held up
in ContainerCreating by anything but the door itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from flashboot_agent.door import mounts
from flashboot_agent.door.folders import PodFolders
from flashboot_agent.wire.base import now
from flashboot_agent.wire.door import ATTRIBUTE_MODEL_REPLICA, PublishedPod

POD_INFO: Final = "csi.storage.k8s.io/pod."
SERVICE_ACCOUNT: Final = "csi.storage.k8s.io/serviceAccount.name"
EPHEMERAL: Final = "csi.storage.k8s.io/ephemeral"


class BadVolume(ValueError):
    """The request can't be right; becomes INVALID_ARGUMENT."""


class Volumes:
    """
    Args:
        kubelet: kubelet's root folder; target paths outside of it are refused.
    """

    def __init__(self, kubelet: Path, folders: PodFolders) -> None:
        self._target = re.compile(
            re.escape(str(kubelet)) + r"/pods/(?P<uid>[0-9a-f-]{8,64})/volumes/kubernetes\.io~csi/[^/]{1,253}/mount"
        )
        self._folders = folders
        # Calls take milliseconds and touch only local memory file systems; one lock is simpler than one per pod.
        self._lock = threading.Lock()

    def publish(self, target: str, context: Mapping[str, str]) -> tuple[PublishedPod, bool]:
        """Make the pod's folder and show it at `target`, read-only. Returns the pod, and whether it is new here.

        Raises BadVolume, OSError."""
        uid = self._uid_in(target)
        pod = published_pod(context)
        if pod.uid != uid:
            raise BadVolume(f"target_path {target} belongs to pod {uid}, the volume context names pod {pod.uid}")
        with self._lock:
            new = self._folders.put(pod)
            with contextlib.suppress(FileExistsError):
                os.mkdir(target, 0o750)
            # kubelet publishes again for every running pod when it restarts; a second mount would hide the first.
            if not _is_mounted(target):
                mounts.bind_readonly(str(self._folders.folder(uid)), target)
        return pod, new

    def unpublish(self, target: str) -> str:
        """Take the mount away, and the pod's folder with its last one. Returns the pod's UID.

        Raises BadVolume, OSError."""
        uid = self._uid_in(target)
        with self._lock:
            while _is_mounted(target):
                mounts.detach(target)
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(target)
            if not self._still_shown(uid):
                self._folders.remove(uid)
        return uid

    def _uid_in(self, target: str) -> str:
        found = self._target.fullmatch(target)
        if found is None or ".." in target.split("/"):
            raise BadVolume(f"target_path {target!r} is not the place of an inline volume under kubelet's root folder")
        return found["uid"]

    def _still_shown(self, uid: str) -> bool:
        """Whether another volume of the same pod shows the folder."""
        shown = f"/pods/{uid}"
        return any(m.root.endswith(shown) and self._target.fullmatch(m.point) for m in mounts.mounts())


def _is_mounted(target: str) -> bool:
    return any(mount.point == target for mount in mounts.mounts())


def published_pod(context: Mapping[str, str]) -> PublishedPod:
    """The pod that a volume context names. kubelet writes these keys itself, over whatever a manifest put there.

    Raises BadVolume that names the key."""
    if context.get(EPHEMERAL, "true") != "true":
        raise BadVolume("only inline volumes (csi: in the pod's volumes) are served, no persistent ones")
    keys = {
        "uid": f"{POD_INFO}uid",
        "namespace": f"{POD_INFO}namespace",
        "name": f"{POD_INFO}name",
        "service_account": SERVICE_ACCOUNT,
        "model_replica": ATTRIBUTE_MODEL_REPLICA,
    }
    values = {field: context[key] for field, key in keys.items() if key in context}
    missing = [keys[field] for field in ("uid", "namespace", "name", "service_account") if field not in values]
    if missing:
        raise BadVolume(
            f"the volume context lacks {', '.join(missing)}; is podInfoOnMount set in the CSIDriver object?"
        )
    try:
        return PublishedPod.model_validate({**values, "published_at": now()})
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = str(first["loc"][0])
        key = next(key for name, key in keys.items() if field in (name, to_camel(name)))
        raise BadVolume(f"{key} is {context[key]!r}: {first['msg']}") from None
