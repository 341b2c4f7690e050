"""A real agent over TLS: who may do what, how it gets a certificate, and that a rotation breaks nothing."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from datetime import timedelta

import pytest

from flashboot_agent.wire.base import now
from flashboot_agent.wire.desired import Desired
from flashboot_agent.wire.problem import Problem
from flashboot_agent.wire.trust import Certificate, CertificateRequest
from flashboot_operator.agents.client import AgentClient, AgentUntrusted
from tests.component.agents import Cluster, NamedConnection, Node, eventually
from tests.component.trust import Issuer

ISSUER = Issuer()
CUT = "closed connection without response|reset by peer|Broken pipe"
"""What a client sees whose certificate is refused: asyncio ends the connection without the alert."""


@pytest.fixture
def node(cluster: Cluster) -> Node:
    return cluster.node("node-a", issuer=ISSUER)


def answer(issuer: Issuer, request: CertificateRequest, *, life: timedelta = timedelta(days=1)) -> Certificate:
    made = issuer.authority.sign_agent(request.csr.encode(), request.node, now(), life)
    return Certificate(certificate=made.decode(), ca=issuer.ca.decode())


def shown(node: Node) -> dict[str, object]:
    """The certificate that the agent shows, verified."""
    assert node.context is not None
    link = NamedConnection(node.ip, node.name, node.context, 10)
    link.connect()
    found = link.sock.getpeercert()
    link.close()
    assert found
    return dict(found)


def test_probes_need_no_certificate_and_everything_else_the_operators(node: Node) -> None:
    agents = ISSUER.issue_agent("node-b")
    nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    nobody.load_verify_locations(cadata=ISSUER.ca.decode())
    another = ISSUER.context(agents)
    for path in ("/healthz", "/readyz", "/metrics"):
        node.context = nobody
        assert node.get(path)[0] == 200
    assert "flashboot_certificate_expires_timestamp_seconds 1" in node.get("/metrics")[1].decode()
    for context, who in ((nobody, "a client without a certificate"), (another, "flashboot://agent/node-b")):
        node.context = context
        for method, path in (
            ("GET", "/v1/observed"),
            ("PUT", "/v1/desired"),
            ("GET", "/v1/arenas/x"),
            ("GET", "/v1/certificate"),
            ("PUT", "/v1/certificate"),
        ):
            status, body = node.call(method, path, b"{}" if method == "PUT" else None)
            problem = Problem.model_validate_json(body)
            assert (status, problem.reason) == (403, "PeerRefused")
            assert who in problem.message
    node.context = ISSUER.operator_context()
    assert node.observed().node == "node-a"


def test_a_certificate_of_another_ca_does_not_get_past_the_handshake(node: Node) -> None:
    stranger = Issuer().issue_operator()
    node.context = ISSUER.context(stranger)
    with pytest.raises(OSError, match=CUT):
        node.get("/healthz")
    expired = ISSUER.issue_operator(life=timedelta(seconds=-1))
    node.context = ISSUER.context(expired)
    with pytest.raises(OSError, match=CUT):
        node.get("/healthz")


def test_older_tls_is_refused(node: Node) -> None:
    assert node.context is not None
    node.context.minimum_version = ssl.TLSVersion.TLSv1_2
    node.context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(OSError, match=f"(?i)EOF|protocol.version|{CUT}"):
        node.get("/healthz")


def test_no_session_outlives_a_verification(node: Node) -> None:
    """With a ticket a client would get in again without showing its certificate."""
    assert node.context is not None
    link = NamedConnection(node.ip, node.name, node.context, 10)
    link.request("GET", "/healthz")
    assert link.getresponse().read() == b"ok\n"
    assert link.sock.session is not None
    assert not link.sock.session.has_ticket
    link.close()


def test_a_new_node_is_enrolled(cluster: Cluster) -> None:
    node = cluster.node("node-a", issuer=ISSUER, enrolled=False)
    assert node.observed().certificate_expires_at is None
    status, body = node.get("/v1/certificate")
    assert status == 503, "without a token there is nothing to show"
    assert "no service account token" in Problem.model_validate_json(body).message
    node.token_file.write_text("first\n")
    one = CertificateRequest.model_validate_json(node.get("/v1/certificate")[1])
    node.token_file.write_text("second\n")
    two = CertificateRequest.model_validate_json(node.get("/v1/certificate")[1])
    assert (one.token, two.token) == ("first", "second"), "kubelet replaces it"
    bad = answer(Issuer(), two)
    status, body = node.call("PUT", "/v1/certificate", bad.model_copy(update={"ca": ISSUER.ca.decode()}).to_json())
    assert (status, Problem.model_validate_json(body).reason) == (400, "BadRequest")
    assert node.call("PUT", "/v1/certificate", answer(ISSUER, two).to_json()) == (200, b"")
    node.context = ISSUER.operator_context()
    assert node.observed().certificate_expires_at is not None
    serial = shown(node)["serialNumber"]
    node.kill_agent()
    node.start_agent()
    assert shown(node)["serialNumber"] == serial, "a restart keeps it"


def test_a_rotation_breaks_no_connection(node: Node) -> None:
    node.token_file.write_text("token")
    assert node.context is not None
    link = NamedConnection(node.ip, node.name, node.context, 30)
    link.request("GET", "/v1/observed")
    counter = json.loads(link.getresponse().read())["counter"]
    local = link.sock.getsockname()
    answers: list[tuple[int, int]] = []

    def poll() -> None:
        link.request("GET", f"/v1/observed?after={counter}&waitSeconds=25")
        got = link.getresponse()
        answers.append((got.status, json.loads(got.read())["counter"]))

    before = shown(node)["serialNumber"]
    thread = threading.Thread(target=poll)
    thread.start()
    request = CertificateRequest.model_validate_json(node.get("/v1/certificate")[1])
    assert node.call("PUT", "/v1/certificate", answer(ISSUER, request).to_json())[0] == 200
    assert shown(node)["serialNumber"] != before
    thread.join(30)
    assert answers, "the long poll that ran was answered"
    assert answers[0][0] == 200
    assert answers[0][1] > counter, "and told of the new certificate"
    link.request("GET", "/v1/observed")
    assert link.getresponse().status == 200
    assert link.sock.getsockname() == local, "over the same connection"
    link.close()


def test_an_expired_certificate_is_healed_by_enrolment(node: Node) -> None:
    node.token_file.write_text("token")
    request = CertificateRequest.model_validate_json(node.get("/v1/certificate")[1])
    short = answer(ISSUER, request, life=timedelta(seconds=3))
    assert node.call("PUT", "/v1/certificate", short.to_json())[0] == 200

    def refused() -> bool:
        try:
            shown(node)
        except ssl.SSLCertVerificationError as error:
            return "self-signed" in str(error)
        return False

    eventually(refused, "the agent shows its own certificate once the other has expired")
    good, node.context = node.context, ISSUER.bootstrap_context()
    assert node.observed().certificate_expires_at is None
    again = CertificateRequest.model_validate_json(node.get("/v1/certificate")[1])
    assert node.call("PUT", "/v1/certificate", answer(ISSUER, again).to_json())[0] == 200
    node.context = good
    assert shown(node)


def test_a_new_ca_reaches_a_running_agent(node: Node) -> None:
    """One joins, then the old one goes; at each step whoever has a certificate of a CA that counts gets in."""
    node.token_file.write_text("token")
    new = Issuer()
    node.ca_file.write_bytes(ISSUER.ca + new.ca)
    old_context, node.context = node.context, new.context(new.issue_operator(), ca=ISSUER.ca + new.ca)
    eventually(lambda: node.get("/v1/observed")[0] == 200, "the operator of the new CA gets in")
    request = CertificateRequest.model_validate_json(node.get("/v1/certificate")[1])
    both = answer(new, request).model_copy(update={"ca": (ISSUER.ca + new.ca).decode()})
    assert node.call("PUT", "/v1/certificate", both.to_json())[0] == 200
    node.ca_file.write_bytes(new.ca)
    node.context = new.operator_context()
    assert node.get("/v1/observed")[0] == 200
    node.context = old_context

    def out() -> bool:
        try:
            return node.get("/healthz")[0] != 200
        except OSError:
            return True

    eventually(out, "the operator of the old CA no longer gets in")


def test_without_a_ca_nobody_commands_it(cluster: Cluster) -> None:
    node = cluster.node("node-a", start=False, issuer=ISSUER)
    node.ca_file.unlink()
    node.start_holder()
    nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    nobody.check_hostname, nobody.verify_mode = False, ssl.CERT_NONE
    node.context = nobody
    node.start_agent()
    assert node.get("/v1/observed")[0] == 403
    node.context = ISSUER.bootstrap_context()
    with pytest.raises(OSError, match=CUT):
        node.get("/v1/observed")
    assert "the operator can't reach this agent until it can" in node.log.read_text()
    node.ca_file.write_bytes(ISSUER.ca)
    began = time.monotonic()
    eventually(lambda: node.get("/v1/observed")[0] == 200, "the CA is read when it comes")
    assert time.monotonic() - began < 20


async def test_the_operators_client_checks_the_nodes_name(node: Node) -> None:
    client = AgentClient(port=9440, tls=True)
    client.identify(ISSUER.issue_operator())
    with pytest.raises(AgentUntrusted, match="node-b"):
        await client.observed("node-b", node.ip, after=-1, wait_s=0)
    assert (await client.observed("node-a", node.ip, after=-1, wait_s=0)).node == "node-a"
    client.identify(Issuer().issue_operator())
    with pytest.raises(AgentUntrusted, match="CERTIFICATE_VERIFY_FAILED"):
        await client.observed("node-a", node.ip, after=-1, wait_s=0)
    await client.close()


async def test_a_call_that_runs_survives_the_operators_own_rotation(node: Node) -> None:
    client = AgentClient(port=9440, tls=True)
    client.identify(ISSUER.issue_operator())
    first = await client.observed("node-a", node.ip, after=-1, wait_s=0)
    poll = asyncio.create_task(client.observed("node-a", node.ip, after=first.counter, wait_s=25))
    await asyncio.sleep(0)
    client.identify(ISSUER.issue_operator())
    await client.put(node.ip, Desired(epoch=1, revision=1, node="node-a"))
    assert (await poll).revision == 1
    await client.close()


async def test_off_is_plain_and_says_so(cluster: Cluster) -> None:
    node = cluster.node("node-a")
    client = AgentClient(port=9440)
    seen = await client.observed("node-a", node.ip, after=-1, wait_s=0)
    assert (seen.node, seen.certificate_expires_at) == ("node-a", None)
    await client.close()
    assert node.get("/v1/certificate")[0] == 404
    assert "TLS is off" in node.log.read_text()
