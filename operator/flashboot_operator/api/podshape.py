"""The shape of `spec.template`, as far as the operator reads it. The CRD leaves most of a pod open, so that a map where
a pod has a list comes as far as here; the API server refuses it only once the Deployment is applied."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", alias_generator=to_camel)


class _Named(_Part):
    name: str


class _Mount(_Part):
    mount_path: str = ""


class _Resources(_Part):
    limits: dict[str, Any] | None = None


class _Sleep(_Part):
    seconds: int = 0


class _Hook(_Part):
    sleep: _Sleep | None = None


class _Lifecycle(_Part):
    pre_stop: _Hook | None = None


class _Container(_Part):
    name: str | None = None
    command: list[str] | None = None
    args: list[str] | None = None
    env: list[_Named] | None = None
    resources: _Resources | None = None
    volume_mounts: list[_Mount] | None = None
    lifecycle: _Lifecycle | None = None


class _Pod(_Part):
    containers: list[_Container] = Field(min_length=1)
    volumes: list[_Named] | None = None
    termination_grace_period_seconds: int | None = None


class _Metadata(_Part):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Template(_Part):
    metadata: _Metadata = _Metadata()
    spec: _Pod


class NoPodTemplate(ValueError):
    """It has another shape; the message names the field."""


def require_shape(template: dict[str, Any]) -> None:
    """Raises NoPodTemplate, about the first field that is not as in a pod."""
    try:
        _Template.model_validate(template)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise NoPodTemplate(f"template.{where} is not as in a pod: {first['msg']}") from error
