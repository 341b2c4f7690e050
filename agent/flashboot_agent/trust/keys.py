"""An agent's key, its certificate request, and the certificate that it signs itself until it has a real one."""

from __future__ import annotations

import ipaddress
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from flashboot_agent.wire.trust import agent_uri

SELF_SIGNED = timedelta(days=3650)
"""It proves nothing anyway (wire/trust.py), so that its end would only be one more thing that can fail."""

MALFORMED: Final = (
    ValueError,
    TypeError,  # a key with a password
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""All that the library raises for documents that are not what they should be; it has no base class for them."""


def new_key() -> ec.EllipticCurvePrivateKey:
    """P-256: what everything speaks, and quick to sign with."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """PKCS#8, not encrypted: whoever may read the file may be the agent."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def agent_names(node: str) -> x509.SubjectAlternativeName:
    """The URI that peers and the operator check, and the node's name for clients that check host names."""
    host: x509.GeneralName
    try:
        host = x509.IPAddress(ipaddress.ip_address(node))  # some clusters name their nodes so
    except ValueError:
        host = x509.DNSName(node)
    return x509.SubjectAlternativeName([x509.UniformResourceIdentifier(agent_uri(node)), host])


def subject(name: str) -> x509.Name:
    """For people who read certificates; nothing decides by it. A common name has at most 64 characters."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def certificate_request(key: ec.EllipticCurvePrivateKey, node: str) -> bytes:
    """The CSR (PEM)."""
    builder = x509.CertificateSigningRequestBuilder(subject(node)).add_extension(agent_names(node), critical=True)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def self_signed(key: ec.EllipticCurvePrivateKey, node: str, at: datetime) -> bytes:
    """A certificate (PEM) under which the operator can reach an agent that has none yet."""
    name = subject(node)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(at - timedelta(days=1))
        .not_valid_after(at + SELF_SIGNED)
        .add_extension(agent_names(node), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def uris(certificate: x509.Certificate) -> list[str]:
    """URI SANs. Raises one of MALFORMED, also when it has no SAN at all."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return names.get_values_for_type(x509.UniformResourceIdentifier)
