"""The ModelReplicas that the operator knows: the newest version of each that anybody showed to us.

kopf's events and the answers to our own writes fill it; what may be missing or gone is asked for.
"""

from __future__ import annotations

import re

from flashboot_agent.wire.base import DNS_NAME
from flashboot_operator.api.base import GROUP, PLURAL, VERSION
from flashboot_operator.core.facts import Key
from flashboot_operator.kube.client import Kube, NotFound, Object
from flashboot_operator.kube.reflector import newer

NAME = re.compile(DNS_NAME)
ALL = f"/apis/{GROUP}/{VERSION}/{PLURAL}"


def path_of(key: Key, sub: str = "") -> str:
    path = f"/apis/{GROUP}/{VERSION}/namespaces/{key[0]}/{PLURAL}/{key[1]}"
    return f"{path}/{sub}" if sub else path


class Objects:
    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._known: dict[Key, Object] = {}
        self._doubtful: set[Key] = set()

    def known(self) -> set[Key]:
        return set(self._known)

    def peek(self, key: Key) -> Object | None:
        return self._known.get(key)

    def show(self, obj: Object) -> None:
        """Somebody has seen this version."""
        key = (obj["metadata"]["namespace"], obj["metadata"]["name"])
        before = self._known.get(key)
        if before is None or newer(obj, before):
            self._known[key] = obj

    def doubt(self, key: Key) -> None:
        """It may be gone, or made anew: ask before the next use."""
        self._doubtful.add(key)

    async def get(self, key: Key) -> Object | None:
        """The object, or None when there is none. Raises KubeError."""
        if not NAME.fullmatch(key[1]):
            return None  # from a pod's volume, which may say anything, also a path of the API server
        if key in self._doubtful or key not in self._known:
            self._doubtful.discard(key)  # before the question: a doubt that comes while it is asked is another one
            try:
                self.show(await self._kube.get(path_of(key)))
            except NotFound:
                self._known.pop(key, None)
            except BaseException:  # also when it is cancelled: what was not answered is as doubtful as before
                self._doubtful.add(key)
                raise
        return self._known.get(key)

    async def list(self) -> set[Key]:
        """All that there are now; what we know beyond that becomes doubtful. Raises KubeError."""
        found: set[Key] = set()
        query: dict[str, object] = {"limit": 500}
        while True:
            answer = await self._kube.get(ALL, **query)
            for item in answer.get("items") or []:
                self.show(item)
                found.add((item["metadata"]["namespace"], item["metadata"]["name"]))
            token = answer["metadata"].get("continue")
            if not token:
                break
            query["continue"] = token
        for key in self.known() - found:
            self.doubt(key)
        return found
