"""What the user and the operator tell the plug-in: one JSON object on the command line, and three deadlines.

The object is the value of `--model-loader-extra-config`. Its key `flashboot` is what makes an engine ours; without it
the plug-in does nothing at all. Environment beats default; every field says its unit.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError

from flashboot_agent.core.errors import BadRequest
from flashboot_agent.wire.attach import MOUNT_PATH, SOCKET_NAME
from flashboot_agent.wire.base import WireModel

EXTRA_CONFIG_KEY: Final = "flashboot"
LOAD_FORMAT: Final = "private"
"""The load format that SGLang keeps for loaders of others; alone it ends with an error, never with a cold load."""


class EngineSettings(WireModel):
    """The object under `flashboot`."""

    model: Annotated[str, Field(min_length=1)]
    """Name of the model: what the bytes are of."""
    revision: Annotated[str, Field(min_length=1)]
    """Immutable revision of the model."""
    on_mismatch: Literal["Fail", "LoadFromCheckpoint"] = "Fail"
    """What `transfer.onMismatch` of the ModelReplica was when the pod was made, for people who look at the pod. Whether
    this engine may seed an arena of its own identity is decided by the operator, from what it says now."""
    clone_timeout_seconds: Annotated[float, Field(gt=0, le=86400)] = 60
    """Seconds that a running clone may stand still."""
    socket: Annotated[str, Field(min_length=1, max_length=107)] = f"{MOUNT_PATH}/{SOCKET_NAME}"
    """The pod's socket; Linux allows 107 bytes."""


@dataclass(frozen=True)
class Deadlines:
    """Seconds that the engine waits before it ends with an error; a restart of the pod then starts them anew."""

    connect: float = 600.0
    """For an agent or a door that is away (FLASHBOOT_CONNECT_SECONDS)."""
    arena: float = 1800.0
    """For the arena's first byte: another pod may be loading a large checkpoint (FLASHBOOT_ARENA_SECONDS)."""
    preflight: float = 600.0
    """For a broken checkpoint to be put right (FLASHBOOT_PREFLIGHT_SECONDS)."""
    grace: float = 30.0
    """From SIGTERM to the end (FLASHBOOT_GRACE_SECONDS, by the operator: what kubelet grants); see engine/drain.py."""

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Deadlines:
        """Raises BadRequest when a variable is no positive number."""
        values: dict[str, float] = {}
        for field in fields(cls):
            variable = f"FLASHBOOT_{field.name.upper()}_SECONDS"
            text = environment.get(variable)
            if text is None:
                continue
            try:
                values[field.name] = float(text)
            except ValueError:
                values[field.name] = -1.0
            if not 0 < values[field.name] < float("inf"):
                raise BadRequest(f"{variable} must be a positive number of seconds, not {text!r}")
        return cls(**values)


def settings_of(extra_config: Any) -> EngineSettings | None:
    """The settings in a `model_loader_extra_config`, or None when it does not name us.

    Raises BadRequest when it does and is wrong; the message names the field.
    """
    if isinstance(extra_config, str) and EXTRA_CONFIG_KEY not in extra_config:
        return None  # not ours to judge
    extra = extra_config_of(extra_config)
    if EXTRA_CONFIG_KEY not in extra:
        return None
    try:
        return EngineSettings.model_validate(extra[EXTRA_CONFIG_KEY])
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join((EXTRA_CONFIG_KEY, *map(str, first["loc"])))
        raise BadRequest(f"--model-loader-extra-config: {where}: {first['msg']}") from error


def extra_config_of(extra_config: Any) -> dict[str, Any]:
    """A `model_loader_extra_config` as a mapping; SGLang has it as JSON's text or as the mapping itself.

    Raises BadRequest when it is neither.
    """
    if isinstance(extra_config, str):
        try:
            extra_config = json.loads(extra_config or "{}")
        except ValueError as error:
            raise BadRequest(f"--model-loader-extra-config is no JSON: {error}") from error
    return dict(extra_config) if isinstance(extra_config, dict) else {}
