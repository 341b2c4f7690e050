"""Certificates and tokens of one rack, made anew by every `up` and readable by root only."""

import os
import secrets
from pathlib import Path

from rack.settings import API_SERVICE_IP, HOST_IP, METRICS_NAME
from rack.shell import script

_DAYS = 30
_API_NAMES = (
    "DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,"
    f"DNS:kubernetes.default.svc.cluster.local,IP:127.0.0.1,IP:{HOST_IP},IP:{API_SERVICE_IP}"
)


def make_certificates(pki: Path) -> None:
    """The cluster's authority, the API server's two certificates, the front proxy's pair, that of the metrics server,
    the token signing key.

    Files: ca, api, kubelet-client, front-proxy-ca, front-proxy, metrics (each .crt and .key), sa.key, sa.pub.
    """
    pki.mkdir(mode=0o700, parents=True)
    key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    script(
        f"""
        cd {pki}; umask 077
        authority() {{ openssl req -x509 {key} -days {_DAYS} -keyout $1.key -out $1.crt -subj "/CN=$2" 2>/dev/null; }}
        leaf() {{
            openssl req {key} -keyout $2.key -out $2.csr -subj "$3" 2>/dev/null
            printf '%s' "$4" > $2.ext
            openssl x509 -req -in $2.csr -CA $1.crt -CAkey $1.key -CAcreateserial -days {_DAYS} \
                -extfile $2.ext -out $2.crt 2>/dev/null
        }}
        authority ca rack-ca
        leaf ca api /CN=kube-apiserver "subjectAltName={_API_NAMES}"
        leaf ca kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client extendedKeyUsage=clientAuth
        leaf ca metrics /CN=metrics-server "subjectAltName=DNS:{METRICS_NAME}"
        authority front-proxy-ca rack-front-proxy-ca
        leaf front-proxy-ca front-proxy /CN=front-proxy-client extendedKeyUsage=clientAuth
        openssl ecparam -name prime256v1 -genkey -noout -out sa.key
        openssl ec -in sa.key -pubout -out sa.pub 2>/dev/null
        """
    )


def make_tokens(file: Path, nodes: list[str]) -> dict[str, str]:
    """Bearer tokens for `admin`, `proxy` and every node, also written to the API server's token file."""
    users = {"admin": ("admin", "system:masters"), "proxy": ("system:kube-proxy", "")}
    users |= {n: (f"system:node:{n}", "system:nodes") for n in nodes}
    tokens = {name: secrets.token_hex(24) for name in users}
    lines = [f'{tokens[n]},{user},{user},"{group}"\n' for n, (user, group) in users.items()]
    write_secret(file, "".join(lines))
    return tokens


def write_secret(file: Path, text: str) -> None:
    """Write a file that only its owner can read, from its first byte on."""
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w") as out:
        os.fchmod(fd, 0o600)
        out.write(text)
