"""The cluster's own certificate authority: made from nothing, signs agents for their node and the operator for itself.

Takes nothing from a certificate request but its public key; what a certificate says is decided here, from the node's
name. There may be several CA certificates, so that a CA can be replaced without a break: all of them count, the newest
one that has had time to reach every node signs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, ObjectIdentifier

from flashboot_agent.trust.keys import MALFORMED, agent_names, key_pem, new_key, subject
from flashboot_agent.wire.trust import OPERATOR_URI

CA_LIFE: Final = timedelta(days=3650)
CA_RENEW: Final = timedelta(days=365)
"""A CA is joined by its successor this long before its end."""
SETTLE: Final = timedelta(minutes=10)
"""Until a new CA signs: kubelet brings a changed ConfigMap to every node within a minute or two."""
SKEW: Final = timedelta(minutes=5)
"""Certificates count from this long ago, for nodes whose clock is slow."""
PEM: Final = serialization.Encoding.PEM
_KEY: Final = re.compile(rb"-----BEGIN ([A-Z ]*)PRIVATE KEY-----.*?-----END \1PRIVATE KEY-----", re.DOTALL)


class RequestRefused(Exception):
    """A certificate request that is not what an agent of that node asks; says why."""


class AuthorityDamaged(Exception):
    """What is stored makes no CA; says why."""


@dataclass(frozen=True)
class Signer:
    """A CA certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


@dataclass(frozen=True)
class Authority:
    """All CA certificates that count, and those of them that can sign (at least one), oldest first."""

    certificates: tuple[x509.Certificate, ...]
    signers: tuple[Signer, ...]

    @classmethod
    def new(cls, at: datetime) -> Authority:
        signer = _new_signer(at)
        return cls((signer.certificate,), (signer,))

    @classmethod
    def parse(cls, certificates: bytes, keys: bytes) -> Authority:
        """From PEM, in any order. Raises AuthorityDamaged."""
        try:
            parsed = sorted(x509.load_pem_x509_certificates(certificates), key=lambda c: c.not_valid_before_utc)
            private = [_ec_key(pem) for pem in _blocks(keys)]
            for certificate in parsed:
                _require_ca(certificate)
        except MALFORMED as error:
            raise AuthorityDamaged(str(error)) from error
        signers = [Signer(c, key) for c in parsed for key in private if c.public_key() == key.public_key()]
        if not signers:
            raise AuthorityDamaged("none of the keys belongs to one of the CA certificates")
        return cls(tuple(parsed), tuple(signers))

    @property
    def bundle(self) -> bytes:
        """All CA certificates that count, PEM."""
        return b"".join(c.public_bytes(PEM) for c in self.certificates)

    @property
    def keys(self) -> bytes:
        """Their private keys, PEM."""
        return b"".join(key_pem(signer.key) for signer in self.signers)

    def renewed(self, at: datetime) -> Authority:
        """Without what has expired, with a successor when the newest nears its end; itself when neither is needed."""
        certificates = tuple(c for c in self.certificates if at < c.not_valid_after_utc)
        signers = tuple(s for s in self.signers if at < s.certificate.not_valid_after_utc)
        if not any(at < s.certificate.not_valid_after_utc - CA_RENEW for s in signers):
            successor = _new_signer(at)
            certificates, signers = (*certificates, successor.certificate), (*signers, successor)
        return (
            self if certificates == self.certificates and signers == self.signers else Authority(certificates, signers)
        )

    def signer(self, at: datetime) -> Signer:
        """The newest that every node knows by now; when none is that old, the oldest."""
        settled = [s for s in self.signers if s.certificate.not_valid_before_utc + SETTLE <= at]
        return settled[-1] if settled else self.signers[0]

    def sign_agent(self, csr: bytes, node: str, at: datetime, life: timedelta) -> bytes:
        """The certificate (PEM) of a node's agent. Raises RequestRefused."""
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        public, names = _checked(csr, node), agent_names(node)
        return self._sign(public, name=f"flashboot-agent {node}", names=names, usages=usages, at=at, life=life)

    def operator(self, at: datetime, life: timedelta) -> tuple[bytes, bytes]:
        """A client certificate of the operator and its key (PEM). It can't be used to serve."""
        key = new_key()
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(OPERATOR_URI)])
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        pem = self._sign(key.public_key(), name="flashboot-operator", names=names, usages=usages, at=at, life=life)
        return pem, key_pem(key)

    def _sign(
        self,
        public: ec.EllipticCurvePublicKey,
        *,
        name: str,
        names: x509.SubjectAlternativeName,
        usages: Sequence[ObjectIdentifier],
        at: datetime,
        life: timedelta,
    ) -> bytes:
        signer = self.signer(at)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject(name))
            .issuer_name(signer.certificate.subject)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(at - SKEW)
            .not_valid_after(min(at + life, signer.certificate.not_valid_after_utc))
            .add_extension(names, critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signing=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key()), critical=False)
        )
        return builder.sign(signer.key, hashes.SHA256()).public_bytes(PEM)


def _new_signer(at: datetime) -> Signer:
    key = new_key()
    # The serial number in the name: a chain is found by name, and two CAs of one name would only confuse people.
    serial = x509.random_serial_number()
    name = subject(f"flashboot-ca {serial:040x}"[:40])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(at - SKEW)
        .not_valid_after(at + CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signing=False), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return Signer(builder.sign(key, hashes.SHA256()), key)


def _key_usage(*, signing: bool) -> x509.KeyUsage:
    """Of a leaf that signs handshakes, or of a CA that signs certificates."""
    return x509.KeyUsage(
        digital_signature=signing,
        key_cert_sign=not signing,
        crl_sign=not signing,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _checked(csr: bytes, node: str) -> ec.EllipticCurvePublicKey:
    try:
        request = x509.load_pem_x509_csr(csr)
        names = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        public = request.public_key()
        valid = request.is_signature_valid
    except MALFORMED as error:
        raise RequestRefused(f"node {node}: not a certificate request of an agent: {error}") from error
    if not isinstance(public, ec.EllipticCurvePublicKey) or not isinstance(public.curve, ec.SECP256R1):
        raise RequestRefused(f"node {node}: the request's key is not a P-256 key")
    if not valid:
        raise RequestRefused(f"node {node}: the request is not signed by its own key")
    if set(names) != set(agent_names(node)):
        shown = [str(name.value) for name in names][:4]
        raise RequestRefused(f"node {node}: the request asks for {shown}, expected the node's own names only")
    return public


def _require_ca(certificate: x509.Certificate) -> None:
    name = certificate.subject.rfc4514_string()
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except x509.ExtensionNotFound:
        constraints = None
    if constraints is None or not constraints.ca:
        raise AuthorityDamaged(f"{name} is not a CA certificate")
    if not isinstance(certificate.public_key(), ec.EllipticCurvePublicKey):
        raise AuthorityDamaged(f"the key of CA {name} is not an EC key")


def _ec_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("a key is not an EC key")
    return key


def _blocks(pem: bytes) -> list[bytes]:
    """The private keys of a file of several, PKCS#8 or SEC1."""
    return [m[0] for m in _KEY.finditer(pem)]
