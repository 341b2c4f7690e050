"""The leader's certificates when the API server has no CA for it any more."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from flashboot_agent.trust.credentials import Credentials
from flashboot_operator.agents.client import AgentClient
from flashboot_operator.kube.client import Kube, NotFound, Object
from flashboot_operator.reconcile import trust as module
from flashboot_operator.reconcile.trust import Trust

DAY = timedelta(days=1)


class Objects(Kube):
    """Secret and ConfigMap by path, as the chart makes them; `gone` when somebody deleted them."""

    def __init__(self) -> None:
        self.kept: dict[str, Object] = {}
        self.gone = False

    async def get(self, path: str, **query: object) -> Object:
        if self.gone:
            raise NotFound(404, "NotFound", path)
        return self.kept.get(path, {})

    async def replace(self, path: str, body: Object, *, timeout_s: float | None = None) -> Object:
        self.kept[path] = body
        return body


class Shown(AgentClient):
    """What the operator shows to agents."""

    def __init__(self) -> None:
        super().__init__(port=1, tls=True)
        self.shown: list[Credentials] = []

    def identify(self, credentials: Credentials) -> None:
        self.shown.append(credentials)


async def test_our_certificate_is_renewed_under_a_ca_that_was_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    at = datetime(2026, 11, 30, tzinfo=UTC)
    monkeypatch.setattr(module, "now", lambda: at)
    kube, client = Objects(), Shown()
    trust = Trust(kube, client, namespace="flashboot-system", life=DAY)
    kube.gone = True
    assert not await trust._look()
    kube.gone = False
    assert await trust._look()
    kube.gone = True
    assert await trust._look()
    assert len(client.shown) == 1
    at += DAY * 0.6
    assert await trust._look()
    assert len(client.shown) == 2
    assert client.shown[0].ca == client.shown[1].ca
    assert client.shown[0].certificate != client.shown[1].certificate
