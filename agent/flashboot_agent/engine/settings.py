"""What the user and the operator tell the plug-in: one JSON object on the command line.

The object is the value of `--model-loader-extra-config`. Its key `flashboot` is what makes an engine ours; without it
the plug-in does nothing at all. Every field says its unit.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError

from flashboot_agent.core.errors import BadRequest
from flashboot_agent.wire.attach_socket import MOUNT_PATH, SOCKET_NAME
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
