"""When an agent's certificate is brought, and when not; with the operator's own loop and a played agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta

import pytest

from flashboot_agent.trust import keys
from flashboot_agent.wire.base import now
from flashboot_agent.wire.trust import Certificate, CertificateRequest
from flashboot_operator.agents import enrol
from flashboot_operator.agents.client import AgentClient, AgentError
from flashboot_operator.agents.enrol import Enrolment, NotSigned, Signing

LIFE = timedelta(hours=24)
PEM = "-----BEGIN X-----\n"


class Played(AgentClient):
    """An agent that always asks in the name of `says`."""

    def __init__(self) -> None:
        super().__init__(port=1, tls=True)
        self.says = "node-a"
        self.fails = 0
        self.brought: list[str] = []
        self.news = asyncio.Event()
        self.asked = asyncio.Event()

    async def certificate_request(self, node: str, ip: str) -> CertificateRequest:
        self.asked.set()
        if self.fails:
            self.fails -= 1
            raise AgentError("no connection")
        csr = keys.certificate_request(keys.new_key(), self.says).decode()
        return CertificateRequest(node=self.says, csr=csr, token="t")

    async def put_certificate(self, node: str, ip: str, certificate: Certificate) -> None:
        self.brought.append(ip)
        self.news.set()


async def sign(node: str, request: CertificateRequest) -> Certificate:
    if request.token != "t":
        raise NotSigned("no")
    return Certificate(certificate=PEM, ca=PEM)


class Rig:
    def __init__(self) -> None:
        self.client = Played()
        self.ip = "10.0.0.1"
        self.enrolment = Enrolment("node-a", lambda: self.ip, self.client, Signing(sign, LIFE))

    async def quiet(self) -> bool:
        """Whether nothing is brought while the loop has had its turn many times over."""
        for _ in range(50):
            await asyncio.sleep(0)
        return not self.client.brought

    async def brought(self) -> None:
        async with asyncio.timeout(5):
            await self.client.news.wait()
        self.client.news.clear()


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(enrol, "PAUSE_S", 0.01)
    made = Rig()
    task = asyncio.create_task(made.enrolment.run())
    yield made
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await made.client.close()


async def test_nothing_is_brought_before_anything_is_known(rig: Rig) -> None:
    assert await rig.quiet()


async def test_an_agent_that_is_not_believed_gets_one(rig: Rig) -> None:
    rig.enrolment.untrusted()
    await rig.brought()
    assert rig.client.brought == ["10.0.0.1"]


async def test_an_agent_that_says_it_has_none_gets_one(rig: Rig) -> None:
    rig.enrolment.saw(None)
    await rig.brought()


async def test_it_is_renewed_at_half_of_its_life_and_not_before(rig: Rig) -> None:
    rig.enrolment.saw(now() + LIFE / 2 + timedelta(minutes=1))
    assert await rig.quiet()
    rig.enrolment.saw(now() + LIFE / 2 + timedelta(seconds=0.1))
    await rig.brought()


async def test_what_fails_is_tried_again(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.client.fails = 2
    rig.enrolment.untrusted()
    await rig.brought()
    assert caplog.text.count("agent not enrolled: no connection") == 2


async def test_an_agent_that_names_another_node_gets_none(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.client.says = "node-b"
    rig.enrolment.untrusted()
    async with asyncio.timeout(5):
        await rig.client.asked.wait()
    assert await rig.quiet()
    assert "says that it is node node-b" in caplog.text


async def test_a_node_without_an_agent_is_waited_for(rig: Rig) -> None:
    rig.ip = ""
    rig.enrolment.untrusted()
    assert await rig.quiet()
    rig.ip = "10.0.0.2"
    rig.enrolment.untrusted()
    await rig.brought()
    assert rig.client.brought == ["10.0.0.2"]


async def test_nothing_is_sent_before_there_is_something_to_show() -> None:
    client = AgentClient(port=1, tls=True)
    with pytest.raises(AgentError, match="has no certificate to show yet"):
        await client.observed("node-a", "127.0.0.1", after=-1, wait_s=0)
    await client.close()
