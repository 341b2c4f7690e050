"""The ModelReplicas that the operator knows: the newest version of each that anybody showed to us.

kopf's events and the answers to our own writes fill it; what may be missing or gone is asked for. Versions are
compared, since an event may come after the answer to a later write; but the answer to a question counts whatever its
version is, because an API server whose etcd was restored has gone back to earlier ones.
"""

from __future__ import annotations

import re

from flashboot_agent.wire.base import DNS_NAME
from flashboot_operator.api.base import GROUP, PLURAL, VERSION
from flashboot_operator.core.facts import Key
from flashboot_operator.kube.client import Kube, NotFound, Object
from flashboot_operator.kube.reflector import key_of

NAME = re.compile(DNS_NAME)
ALL = f"/apis/{GROUP}/{VERSION}/{PLURAL}"


def path_of(key: Key, sub: str = "") -> str:
    path = f"/apis/{GROUP}/{VERSION}/namespaces/{key[0]}/{PLURAL}/{key[1]}"
    return f"{path}/{sub}" if sub else path


def newer(a: Object, b: Object) -> bool:
    """Whether `a` is a later version than `b`; resource versions of one kind are comparable numbers."""
    return int(a["metadata"]["resourceVersion"]) > int(b["metadata"]["resourceVersion"])


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
        key = key_of(obj)
        before = self._known.get(key)
        if before is None or newer(obj, before):
            self._known[key] = obj

    def _answer(self, obj: Object, asked_with: Object | None) -> None:
        """The API server has this, by a question that was asked while we had `asked_with`. If we still have that, no
        later version can be known to us."""
        key = key_of(obj)
        if self._known.get(key) is asked_with:
            self._known[key] = obj
        else:
            self.show(obj)

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
                asked_with = self._known.get(key)
                self._answer(await self._kube.get(path_of(key)), asked_with)
            except NotFound:
                self._known.pop(key, None)
            except BaseException:  # also when it is cancelled: what was not answered is as doubtful as before
                self._doubtful.add(key)
                raise
        return self._known.get(key)

    async def list(self) -> set[Key]:
        """All that there are now; what we know beyond that becomes doubtful. Raises KubeError."""
        found: set[Key] = set()
        asked_with = dict(self._known)
        query: dict[str, object] = {"limit": 500}
        while True:
            answer = await self._kube.get(ALL, **query)
            for item in answer.get("items") or []:
                self._answer(item, asked_with.get(key_of(item)))
                found.add(key_of(item))
            token = answer["metadata"].get("continue")
            if not token:
                break
            query["continue"] = token
        for key in self.known() - found:
            self.doubt(key)
        return found
