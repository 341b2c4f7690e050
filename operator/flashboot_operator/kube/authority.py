"""The CA's place: Secret `flashboot-ca` (certificates, keys) and ConfigMap `flashboot-ca` (certificates, for agents).

Both are made by the chart, empty, and filled here. The Secret is the truth. Of two leaders that fill it at once the
resourceVersion lets one win, and the other takes the winner's CA. What can't be read is never overwritten: it may be
the CA of every certificate in the cluster.
"""

from __future__ import annotations

import base64
import binascii
import logging
from datetime import datetime

from flashboot_operator.core.authority import Authority, AuthorityDamaged
from flashboot_operator.kube.client import Conflict, Kube, Object

log = logging.getLogger(__name__)

NAME = "flashboot-ca"
CERTIFICATES, KEYS = "ca.crt", "ca.key"
ATTEMPTS = 5
"""To write; more conflicts in a row than two leaders can make."""


class AuthorityStore:
    def __init__(self, kube: Kube, namespace: str) -> None:
        self._kube = kube
        self._secret = f"/api/v1/namespaces/{namespace}/secrets/{NAME}"
        self._config_map = f"/api/v1/namespaces/{namespace}/configmaps/{NAME}"

    async def load(self, at: datetime) -> Authority:
        """The CA that counts now; made, renewed and made known to the agents where needed.

        Raises AuthorityDamaged or KubeError."""
        for _ in range(ATTEMPTS - 1):
            try:
                return await self._load(at)
            except Conflict:  # another operator was faster: take what it wrote
                continue
        return await self._load(at)

    async def _load(self, at: datetime) -> Authority:
        secret = await self._kube.get(self._secret)
        data = secret.get("data") or {}
        found = _parse(data) if data else Authority.new(at)
        authority = found.renewed(at)
        if not data or authority is not found:
            parts = {CERTIFICATES: authority.bundle, KEYS: authority.keys}
            encoded = {key: base64.b64encode(value).decode() for key, value in parts.items()}
            await self._kube.replace(self._secret, {**secret, "data": {**data, **encoded}})
            log.info("CA made" if not data else "CA renewed", extra={"certificates": len(authority.certificates)})
        await self._publish(authority)
        return authority

    async def _publish(self, authority: Authority) -> None:
        config_map: Object = await self._kube.get(self._config_map)
        bundle = authority.bundle.decode()
        if (config_map.get("data") or {}).get(CERTIFICATES) != bundle:
            await self._kube.replace(self._config_map, {**config_map, "data": {CERTIFICATES: bundle}})
            log.info("CA made known to the agents", extra={"certificates": len(authority.certificates)})


def _parse(data: dict[str, str]) -> Authority:
    try:
        certificates, keys = (base64.b64decode(data[key], validate=True) for key in (CERTIFICATES, KEYS))
    except (KeyError, binascii.Error) as error:
        raise AuthorityDamaged(f"Secret {NAME} lacks {CERTIFICATES} or {KEYS}: {error!r}") from error
    try:
        return Authority.parse(certificates, keys)
    except AuthorityDamaged as error:
        raise AuthorityDamaged(f"Secret {NAME}: {error}; restore it, or remove its data to have a new CA") from error
