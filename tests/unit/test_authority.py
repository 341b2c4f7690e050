"""The CA: what it signs, what it refuses, and how one CA follows another."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given
from hypothesis import strategies as st

from flashboot_agent.trust import keys
from flashboot_operator.core.authority import CA_LIFE, SETTLE, SKEW, Authority, AuthorityDamaged, RequestRefused

AT = datetime(2026, 11, 30, tzinfo=UTC)
DAY = timedelta(days=1)
AUTHORITY = Authority.new(AT)
PEM = serialization.Encoding.PEM
KEY = keys.new_key()


def csr(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, *names: x509.GeneralName) -> bytes:
    builder = x509.CertificateSigningRequestBuilder(keys.subject("x"))
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(PEM)


def test_the_ca_can_sign_leaves_only() -> None:
    (ca,) = AUTHORITY.certificates
    constraints = ca.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert (constraints.value.ca, constraints.value.path_length) == (True, 0)
    assert ca.not_valid_after_utc == AT + CA_LIFE
    ca.verify_directly_issued_by(ca)


def test_an_agent_gets_its_own_names_and_both_usages() -> None:
    pem = AUTHORITY.sign_agent(keys.certificate_request(KEY, "node-a"), "node-a", AT, DAY)
    made = x509.load_pem_x509_certificate(pem)
    made.verify_directly_issued_by(AUTHORITY.certificates[0])
    assert keys.uris(made) == ["flashboot://agent/node-a"]
    usages = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usages) == {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert (made.not_valid_before_utc, made.not_valid_after_utc) == (AT - SKEW, AT + DAY)
    assert made.public_key() == KEY.public_key()


def test_the_operator_can_only_be_a_client() -> None:
    pem, key = AUTHORITY.operator(AT, DAY)
    made = x509.load_pem_x509_certificate(pem)
    assert keys.uris(made) == ["flashboot://operator"]
    assert list(made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [
        ExtendedKeyUsageOID.CLIENT_AUTH
    ]
    assert serialization.load_pem_private_key(key, None).public_key() == made.public_key()


def test_nothing_but_the_key_is_taken_from_a_request() -> None:
    builder = (
        x509.CertificateSigningRequestBuilder(keys.subject("system:masters"))
        .add_extension(keys.agent_names("node-a"), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    )
    request = builder.sign(KEY, hashes.SHA256()).public_bytes(PEM)
    made = x509.load_pem_x509_certificate(AUTHORITY.sign_agent(request, "node-a", AT, DAY))
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert "system:masters" not in made.subject.rfc4514_string()


@pytest.mark.parametrize(
    ("request_", "what"),
    [
        (keys.certificate_request(KEY, "node-b"), "expected the node's own names only"),
        (csr(KEY), "not a certificate request of an agent"),
        (csr(KEY, x509.DNSName("node-a")), "expected the node's own names only"),
        (csr(KEY, *keys.agent_names("node-a"), x509.DNSName("api")), "expected the node's own names only"),
        (csr(KEY, x509.UniformResourceIdentifier("flashboot://operator")), "expected the node's own names only"),
        (csr(rsa.generate_private_key(65537, 2048), *keys.agent_names("node-a")), "not a P-256 key"),
        (csr(ec.generate_private_key(ec.SECP384R1()), *keys.agent_names("node-a")), "not a P-256 key"),
        (
            b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n",
            "not a certificate request",
        ),
    ],
)
def test_other_requests_are_refused(request_: bytes, what: str) -> None:
    with pytest.raises(RequestRefused, match=what):
        AUTHORITY.sign_agent(request_, "node-a", AT, DAY)


@pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")
@given(st.integers(0, 10_000))
def test_a_request_with_a_flipped_bit_is_refused(bit: int) -> None:
    """Whatever it hits: names, key or signature."""
    good = x509.load_pem_x509_csr(keys.certificate_request(KEY, "node-a")).public_bytes(serialization.Encoding.DER)
    der = bytearray(good)
    der[bit // 8 % len(der)] ^= 1 << bit % 8
    forged = _pem(bytes(der))
    with pytest.raises(RequestRefused):
        AUTHORITY.sign_agent(forged, "node-a", AT, DAY)


def _pem(der: bytes) -> bytes:
    import base64

    return b"-----BEGIN CERTIFICATE REQUEST-----\n" + base64.encodebytes(der) + b"-----END CERTIFICATE REQUEST-----\n"


def test_a_request_signed_by_another_key_is_refused() -> None:
    """The key of one, the signature of another: whoever asks has to have the key."""
    mine = x509.load_pem_x509_csr(keys.certificate_request(KEY, "node-a"))
    other = mine
    while other == mine or len(mine.signature) != len(other.signature):  # lengths differ by a byte or two
        other = x509.load_pem_x509_csr(keys.certificate_request(keys.new_key(), "node-a"))
    der = mine.public_bytes(serialization.Encoding.DER)
    with pytest.raises(RequestRefused, match="not signed by its own key"):
        AUTHORITY.sign_agent(_pem(der.replace(mine.signature, other.signature)), "node-a", AT, DAY)


def test_what_is_stored_is_read_again() -> None:
    again = Authority.parse(AUTHORITY.bundle, AUTHORITY.keys)
    assert again.certificates == AUTHORITY.certificates
    assert again.bundle == AUTHORITY.bundle
    assert again.keys == AUTHORITY.keys


def test_a_ca_made_by_hand_joins_and_signs(tmp_path: Path) -> None:
    """The commands of docs/trust.md."""
    key, certificate = tmp_path / "new.key", tmp_path / "new.crt"
    for command in (
        ["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(key)],
        [
            *["req", "-x509", "-new", "-key", str(key), "-days", "3650", "-subj", "/CN=flashboot-ca 2"],
            *["-addext", "basicConstraints=critical,CA:TRUE,pathlen:0"],
            *["-addext", "keyUsage=critical,keyCertSign,cRLSign", "-out", str(certificate)],
        ],
    ):
        subprocess.run(["openssl", *command], check=True, capture_output=True, timeout=20)
    long_ago = Authority.new(datetime.now(UTC) - DAY)
    both = Authority.parse(certificate.read_bytes() + long_ago.bundle, key.read_bytes() + long_ago.keys)
    assert len(both.certificates) == len(both.signers) == 2
    soon, later = datetime.now(UTC) + timedelta(seconds=5), datetime.now(UTC) + SETTLE + timedelta(seconds=5)
    assert both.signer(soon).certificate == long_ago.certificates[0], "not every node knows the new one yet"
    assert both.signer(later).certificate == x509.load_pem_x509_certificate(certificate.read_bytes())


def test_a_ca_near_its_end_gets_a_successor_and_leaves() -> None:
    assert AUTHORITY.renewed(AT + 5 * 365 * DAY) is AUTHORITY
    near = AT + CA_LIFE - 300 * DAY
    two = AUTHORITY.renewed(near)
    assert two.certificates[0] == AUTHORITY.certificates[0]
    assert len(two.certificates) == len(two.signers) == 2
    assert two.renewed(near + DAY) is two
    after = two.renewed(AT + CA_LIFE + DAY)
    assert after.certificates == two.certificates[1:]


def test_a_certificate_does_not_outlive_its_ca() -> None:
    end = AUTHORITY.certificates[0].not_valid_after_utc
    made = AUTHORITY.sign_agent(keys.certificate_request(KEY, "n"), "n", end - timedelta(hours=1), DAY)
    assert x509.load_pem_x509_certificate(made).not_valid_after_utc == end


def twice_constrained() -> bytes:
    """A CA certificate that has one extension twice: it can be read only until somebody asks for extensions."""
    der = AUTHORITY.certificates[0].public_bytes(serialization.Encoding.DER)
    key_identifier, constraints = b"\x06\x03\x55\x1d\x0e", b"\x06\x03\x55\x1d\x13"
    return x509.load_der_x509_certificate(der.replace(key_identifier, constraints)).public_bytes(PEM)


@pytest.mark.parametrize(
    ("certificates", "private", "what"),
    [
        (b"", AUTHORITY.keys, "PEM"),
        (twice_constrained(), AUTHORITY.keys, "Duplicate"),
        (AUTHORITY.bundle, b"", "none of the keys"),
        (AUTHORITY.bundle, Authority.new(AT).keys, "none of the keys"),
        (AUTHORITY.operator(AT, DAY)[0], AUTHORITY.keys, "is not a CA certificate"),
        (AUTHORITY.bundle[:-40], AUTHORITY.keys, "PEM"),
    ],
)
def test_what_makes_no_ca_is_told(certificates: bytes, private: bytes, what: str) -> None:
    with pytest.raises(AuthorityDamaged, match=what):
        Authority.parse(certificates, private)


def test_a_node_named_by_its_address_gets_an_address() -> None:
    made = AUTHORITY.sign_agent(keys.certificate_request(KEY, "10.0.0.7"), "10.0.0.7", AT, DAY)
    names = x509.load_pem_x509_certificate(made).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]
