"""The operator's settings, all of them: the environment says, defaults fill in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    namespace: str = "flashboot-system"
    """FLASHBOOT_NAMESPACE or POD_NAMESPACE: where the agents, the Lease and the operator itself live."""
    identity: str = "flashboot-operator"
    """FLASHBOOT_POD_NAME or POD_NAME: holder of the Lease, the same after a restart of the container, so that
    it need not wait for itself."""
    http_host: str = "0.0.0.0"
    """FLASHBOOT_HTTP_HOST: address of `/healthz`, `/readyz`, `/metrics` and the live view. In a pod: all addresses."""
    http_port: int = 9442
    """FLASHBOOT_HTTP_PORT."""
    agent_port: int = 9440
    """FLASHBOOT_AGENT_PORT: where agents listen."""
    tls: str = "mutual"
    """FLASHBOOT_TLS: mutual, or off (plain HTTP to agents that run without TLS, too; for tests only)."""
    certificate_s: int = 86400
    """FLASHBOOT_CERTIFICATE_SECONDS: life of the certificates of agents and operator; renewed at half of it."""
    desired_ttl_s: int = 600
    """FLASHBOOT_DESIRED_TTL_SECONDS: how long an agent may rely on a desired state; it is told again every third."""
    lease_s: int = 15
    """FLASHBOOT_LEASE_SECONDS: after this long without renewal another operator takes over."""
    renew_deadline_s: float = 10.0
    """FLASHBOOT_RENEW_DEADLINE_SECONDS: after this long without renewal this process ends."""
    renew_every_s: float = 2.0
    """FLASHBOOT_RENEW_EVERY_SECONDS."""
    call_timeout_s: float = 10.0
    """FLASHBOOT_CALL_TIMEOUT_SECONDS: deadline of one call to the API server."""
    resync_s: float = 60.0
    """FLASHBOOT_RESYNC_SECONDS: every object is looked at anew this often, whatever events were lost."""
    status_writes_per_second: int = 20
    """FLASHBOOT_STATUS_WRITES_PER_SECOND: over all ModelReplicas; more waits for its turn, the last word wins."""
    log_level: str = "INFO"
    """FLASHBOOT_LOG_LEVEL."""


_VARIABLES = {
    "namespace": "FLASHBOOT_NAMESPACE",
    "identity": "FLASHBOOT_POD_NAME",
    "http_host": "FLASHBOOT_HTTP_HOST",
    "http_port": "FLASHBOOT_HTTP_PORT",
    "agent_port": "FLASHBOOT_AGENT_PORT",
    "tls": "FLASHBOOT_TLS",
    "certificate_s": "FLASHBOOT_CERTIFICATE_SECONDS",
    "desired_ttl_s": "FLASHBOOT_DESIRED_TTL_SECONDS",
    "lease_s": "FLASHBOOT_LEASE_SECONDS",
    "renew_deadline_s": "FLASHBOOT_RENEW_DEADLINE_SECONDS",
    "renew_every_s": "FLASHBOOT_RENEW_EVERY_SECONDS",
    "call_timeout_s": "FLASHBOOT_CALL_TIMEOUT_SECONDS",
    "resync_s": "FLASHBOOT_RESYNC_SECONDS",
    "status_writes_per_second": "FLASHBOOT_STATUS_WRITES_PER_SECOND",
    "log_level": "FLASHBOOT_LOG_LEVEL",
}


_ALSO = {"namespace": "POD_NAMESPACE", "identity": "POD_NAME"}


def from_environment(environment: Mapping[str, str]) -> Settings:
    """Raises ValueError, naming the variable, for a value of the wrong kind or out of its range."""
    given: dict[str, str | int | float] = {}
    for field, variable in _VARIABLES.items():
        text = environment.get(variable, "") or environment.get(_ALSO.get(field, ""), "")
        if not text:
            continue
        kind = type(getattr(Settings(), field))
        try:
            given[field] = kind(text)
        except ValueError as error:
            raise ValueError(f"{variable}={text!r}: expected {kind.__name__}") from error
    settings = Settings(**given)  # type: ignore[arg-type]
    if not settings.renew_every_s < settings.renew_deadline_s < settings.lease_s:
        raise ValueError(
            "FLASHBOOT_RENEW_EVERY_SECONDS < FLASHBOOT_RENEW_DEADLINE_SECONDS < FLASHBOOT_LEASE_SECONDS does not hold"
        )
    if settings.tls not in ("mutual", "off"):
        raise ValueError(f"FLASHBOOT_TLS={settings.tls!r}: expected mutual or off")
    if settings.certificate_s < 10:
        raise ValueError(f"FLASHBOOT_CERTIFICATE_SECONDS={settings.certificate_s}: expected 10 or more")
    if settings.status_writes_per_second < 1:
        raise ValueError(f"FLASHBOOT_STATUS_WRITES_PER_SECOND={settings.status_writes_per_second}: expected 1 or more")
    return settings
