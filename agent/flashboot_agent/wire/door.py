"""Door → agent: one small file per pod, so that neither has to be up for the other.

The door writes `<RUN>/pods/<uid>/` (the folder that becomes the pod's read-only mount; owned by the agent, who binds
SOCKET_NAME in it) and then `<RUN>/meta/<uid>.json` (this model; written to a temporary name and renamed). On unpublish
it removes the meta file first and the folder after. The agent watches both folders with inotify and lists them when it
starts: what is on disk is the truth, whoever restarts.
"""

from __future__ import annotations

from typing import Final

from flashboot_agent.wire.base import Name, Time, Uid, WireModel

RUN: Final = "/run/flashboot"
PODS: Final = "pods"
META: Final = "meta"
HOLDER_SOCKET: Final = "holder/holder.sock"
DRIVER_NAME: Final = "csi.flashboot.io"
ATTRIBUTE_MODEL_REPLICA: Final = "flashboot.io/model-replica"
"""Key of the CSI volumeAttributes that names the pod's ModelReplica."""


class PublishedPod(WireModel):
    uid: Uid
    namespace: Name
    name: Name
    service_account: str
    model_replica: Name | None = None
    published_at: Time
