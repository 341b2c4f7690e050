"""The agent's credentials: what counts, what is refused, what a restart finds."""

from __future__ import annotations

import stat
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashboot_agent.core.errors import BadRequest
from flashboot_agent.trust import keys
from flashboot_agent.trust.credentials import FILE, CredentialStore
from flashboot_agent.wire.base import now
from flashboot_agent.wire.trust import Certificate
from tests.component.trust import DAY, Issuer

NODE = "node-a"
ISSUER = Issuer()
ENROLLED = ISSUER.issue_agent(NODE)


class Clock:
    def __init__(self) -> None:
        self.at = now()

    def __call__(self) -> datetime:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> CredentialStore:
    made = CredentialStore(NODE, tmp_path, clock=clock)
    made.use_ca(ISSUER.ca)
    return made


def answer(request: bytes, *, issuer: Issuer = ISSUER, node: str = NODE, life: timedelta = DAY) -> Certificate:
    made = issuer.authority._sign(  # of the request's key, for a node that need not be the request's
        x509.load_pem_x509_csr(request).public_key(),  # type: ignore[arg-type]
        name=node,
        names=keys.agent_names(node),
        usages=[ExtendedKeyUsageOID.SERVER_AUTH],
        at=now(),
        life=life,
    )
    return Certificate(certificate=made.decode(), ca=issuer.ca.decode())


def test_a_certificate_for_the_request_counts_until_it_ends(store: CredentialStore, clock: Clock) -> None:
    told: list[int] = []
    store.listen(lambda: told.append(store.version))
    assert store.current() is None
    assert store.expires_at is None
    end = store.install(answer(store.request()))
    found = store.current()
    assert found is not None
    assert found.ca == ISSUER.ca
    assert x509.load_pem_x509_certificate(found.certificate).not_valid_after_utc == end == store.expires_at
    assert told == [store.version]
    clock.at = end
    assert store.current() is None
    assert store.expires_at is None


def test_asked_twice_the_request_is_for_the_same_key(store: CredentialStore) -> None:
    """Two operators may ask at once, and either may be the one whose answer comes."""
    one, two = store.request(), store.request()
    first, second = answer(one), answer(two)
    store.install(first)
    store.install(second)
    assert store.current() is not None
    assert store.request() not in (one, two), "the next certificate is for a new key"


def test_the_old_one_stays_until_the_new_one_is_here(store: CredentialStore) -> None:
    store.install(answer(store.request()))
    before = store.current()
    request = store.request()
    assert store.current() == before
    store.install(answer(request))
    after = store.current()
    assert after is not None
    assert before is not None
    assert after.key != before.key


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"node": "node-b"}, "is for .*node-b"),
        ({"life": timedelta(seconds=-1)}, "counts from"),
    ],
)
def test_others_are_refused(store: CredentialStore, change: dict[str, object], what: str) -> None:
    with pytest.raises(BadRequest, match=what):
        store.install(answer(store.request(), **change))  # type: ignore[arg-type]
    assert store.current() is None


def test_one_for_another_key_is_refused(store: CredentialStore) -> None:
    store.request()
    with pytest.raises(BadRequest, match="for a key that node node-a does not have"):
        store.install(answer(keys.certificate_request(keys.new_key(), NODE)))


def test_one_of_a_ca_that_does_not_count_is_refused(store: CredentialStore) -> None:
    foreign = answer(store.request(), issuer=Issuer())
    with pytest.raises(BadRequest, match="no CA that node node-a knows"):
        store.install(foreign.model_copy(update={"ca": ISSUER.ca.decode()}))
    assert store.ca == ISSUER.ca


def test_a_restart_finds_it(store: CredentialStore, tmp_path: Path) -> None:
    store.install(answer(store.request()))
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    again = CredentialStore(NODE, tmp_path)
    again.use_ca(ISSUER.ca)
    again.load()
    assert again.current() == store.current() is not None


@pytest.mark.parametrize("why", ["other node", "expired", "other ca", "damaged", "no key", "no ca"])
def test_what_is_of_no_use_is_ignored(tmp_path: Path, why: str, caplog: pytest.LogCaptureFixture) -> None:
    issuer = Issuer(now() - 2 * DAY)
    at = now() - 2 * DAY if why == "expired" else now()
    issuer.keep("node-b" if why == "other node" else NODE, tmp_path, at=at)
    file = tmp_path / FILE
    if why == "damaged":
        file.write_bytes(file.read_bytes()[:-100])
    elif why == "no key":
        file.write_bytes(file.read_bytes()[300:])
    store = CredentialStore(NODE, tmp_path)
    if why != "no ca":
        store.use_ca(ISSUER.ca if why == "other ca" else issuer.ca)
    store.load()
    assert store.current() is None
    assert "kept certificate of no use" in caplog.text


def test_a_new_ca_counts_at_once_and_one_that_is_gone_takes_its_certificates_along(store: CredentialStore) -> None:
    store.install(answer(store.request()))
    other = Issuer()
    store.use_ca(ISSUER.ca + other.ca)
    found = store.current()
    assert found is not None
    assert found.ca == ISSUER.ca + other.ca
    version = store.version
    store.use_ca(other.ca)
    assert store.current() is None
    assert store.version > version
    with pytest.raises(BadRequest, match="not a CA bundle"):
        store.use_ca(b"")
    assert store.ca == other.ca


KEPT = ENROLLED.key + ENROLLED.certificate


@pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.integers(0, len(KEPT) - 1), st.binary(min_size=1, max_size=4))
def test_a_damaged_file_never_stops_the_agent(tmp_path: Path, at: int, junk: bytes) -> None:
    (tmp_path / FILE).write_bytes(KEPT[:at] + junk + KEPT[at + len(junk) :])
    store = CredentialStore(NODE, tmp_path)
    store.use_ca(ISSUER.ca)
    store.load()
    found = store.current()
    assert found is None or found.certificate == ENROLLED.certificate
