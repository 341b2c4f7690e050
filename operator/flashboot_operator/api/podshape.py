"""The shape of `spec.template`, as far as the CRD types it (podschema.py) or the operator reads it. What is beyond that
the API server refuses only once the Deployment is applied."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError
from pydantic.alias_generators import to_camel

Open = dict[str, Any]
"""An object whose fields are not looked at."""
Text = Annotated[str, Field(max_length=65536)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", alias_generator=to_camel)


class _Named(_Part):
    name: Text


class _Variable(_Named):
    value: Text | None = None
    value_from: Open | None = None


class _Mount(_Named):
    mount_path: Text


class _Resources(_Part):
    limits: Open | None = None
    requests: Open | None = None


class _Sleep(_Part):
    seconds: StrictInt = 0


class _Hook(_Part):
    sleep: _Sleep | None = None


class _Lifecycle(_Part):
    pre_stop: _Hook | None = None


class _Container(_Part):
    name: Annotated[str, Field(max_length=63)]
    image: Annotated[str, Field(max_length=1024)] | None = None
    command: Annotated[list[Text], Field(max_length=1024)] | None = None
    args: Annotated[list[Text], Field(max_length=1024)] | None = None
    env: Annotated[list[_Variable], Field(max_length=1024)] | None = None
    env_from: Annotated[list[Open], Field(max_length=1024)] | None = None
    ports: Annotated[list[Open], Field(max_length=1024)] | None = None
    resources: _Resources | None = None
    volume_mounts: Annotated[list[_Mount], Field(max_length=1024)] | None = None
    lifecycle: _Lifecycle | None = None
    security_context: Open | None = None


class _Pod(_Part):
    containers: Annotated[list[_Container], Field(min_length=1, max_length=64)]
    init_containers: Annotated[list[_Container], Field(max_length=1024)] | None = None
    volumes: Annotated[list[_Named], Field(max_length=1024)] | None = None
    node_selector: dict[str, Text] | None = None
    tolerations: Annotated[list[Open], Field(max_length=1024)] | None = None
    affinity: Open | None = None
    topology_spread_constraints: Annotated[list[Open], Field(max_length=1024)] | None = None
    image_pull_secrets: Annotated[list[Open], Field(max_length=1024)] | None = None
    security_context: Open | None = None
    service_account_name: Text | None = None
    termination_grace_period_seconds: StrictInt | None = None


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
