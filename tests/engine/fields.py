"""Every field that an identity may have with the installed SGLang; most are absent at SGLang's default."""

from __future__ import annotations

from typing import Final

from flashboot_agent.engine import arguments, variables
from flashboot_agent.engine.identity import FILES, PACKAGES, RANKS, SIZES, argument_names

MODEL: Final = ("architecture", "role", "dtype", "quantization", "quantization_config", "loader_extra_config")


def field_names() -> list[str]:
    """Sorted."""
    names = {"schema", "model", "revision", *MODEL, "device", "capability", "cuda", *SIZES, *RANKS}
    names |= {f"version.{name}" for name in PACKAGES} | {f"sha256.{name}" for name in FILES}
    names |= {f"arg.{name}" for name in set(argument_names()) - arguments.HARMLESS.keys()}
    return sorted(names | {f"env.{name}" for name in variables.declared() - variables.HARMLESS.keys()})
