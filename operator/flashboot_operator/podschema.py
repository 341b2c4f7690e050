"""The schema of `spec.template` in the CRD: what people write most, with its types; everything else is kept as it is.

A PodTemplateSpec whole would be a megabyte of CRD that ages with each release of Kubernetes. So only a list where a map
was written, a number where a string belongs, or a name that is missing are refused by `kubectl apply` itself; the rest
is said by the condition Stalled, once the Deployment is applied. api/podshape.py refuses the same as this does.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
OPEN = {"x-kubernetes-preserve-unknown-fields": True}
"""Anything, or anything beside what is named."""
LONGEST = 65536
"""Characters of a text."""
MOST = 1024
"""Entries of a list."""


def _text(description: str) -> Schema:
    return {"description": description, "type": "string", "maxLength": LONGEST}


def _object(description: str, **named: Schema) -> Schema:
    return {"description": description, "type": "object", **({"properties": named} if named else {}), **OPEN}


def _list(description: str, item: Schema) -> Schema:
    return {
        "description": description,
        "type": "array",
        "maxItems": MOST,
        "items": item,
        "x-kubernetes-list-type": "atomic",
    }


def _named(description: str, *more: str, **named: Schema) -> Schema:
    """An object that needs a name, and `more`."""
    made = _object(description, name=_text("Its name."), **named)
    return {**made, "required": ["name", *more]}


def _strings(description: str) -> Schema:
    return {
        "description": description,
        "type": "object",
        "additionalProperties": {"type": "string", "maxLength": LONGEST},
    }


def _texts(description: str) -> Schema:
    """Without a list type, as ever."""
    items = {"type": "string", "maxLength": LONGEST}
    return {"description": description, "type": "array", "maxItems": MOST, "items": items}


def _resources() -> Schema:
    quantities = {"type": "object", "additionalProperties": OPEN}
    return _object(
        "What it needs of a node.",
        limits={"description": "The most that it gets, by resource.", **quantities},
        requests={"description": "What the scheduler reserves, by resource.", **quantities},
    )


def _container(description: str) -> Schema:
    sleep = _object("Waits.", seconds={"description": "For so long.", "type": "integer", "format": "int64"})
    return {
        "description": description,
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"description": "Name of the container.", "type": "string", "maxLength": 63},
            "image": {"description": "Image of the container.", "type": "string", "maxLength": 1024},
            "command": _texts("Replaces the image's entry point."),
            "args": _texts("Arguments; FlashBoot appends the engine's loader arguments to them."),
            "env": _list(
                "Environment variables. A value is a string: numbers and true need quotes.",
                _named(
                    "A variable.",
                    value=_text("Its value."),
                    valueFrom=_object("Where its value comes from."),
                ),
            ),
            "envFrom": _list("Sources of environment variables.", _object("A source.")),
            "ports": _list("Ports that it listens on.", _object("A port.")),
            "resources": _resources(),
            "volumeMounts": _list(
                "Volumes of the pod, and where they go.",
                _named("A volume.", "mountPath", mountPath=_text("Where in the container.")),
            ),
            "lifecycle": _object(
                "What runs at its start and end.", preStop=_object("Before it is told to end.", sleep=sleep)
            ),
            "securityContext": _object("Rights of its processes."),
        },
        **OPEN,
    }


def _pod() -> dict[str, Schema]:
    return {
        "containers": {
            "description": "Containers of the pod; the engine is the one named `engine`, else the first.",
            "type": "array",
            "minItems": 1,
            "maxItems": 64,
            "items": _container("A container, as in a pod."),
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
        },
        "initContainers": _list("Containers that run before the others.", _container("A container, as in a pod.")),
        "volumes": _list("Volumes of the pod; FlashBoot adds its own.", _named("A volume.")),
        "nodeSelector": _strings("Labels that a node must have. A value is a string: numbers and true need quotes."),
        "tolerations": _list("Taints of nodes that do not matter.", _object("A taint.")),
        "affinity": _object("Which nodes and which pods it wants to be near."),
        "topologySpreadConstraints": _list("How pods are spread.", _object("One rule of it.")),
        "imagePullSecrets": _list("Secrets for the registry.", _object("The name of one.")),
        "securityContext": _object("Rights of the pod's processes."),
        "serviceAccountName": _text("The pod's service account."),
        "terminationGracePeriodSeconds": {
            "description": "How long the pod has from the first word of its end until it is killed.",
            "type": "integer",
            "format": "int64",
        },
    }


def pod_template(description: str) -> Schema:
    """A PodTemplateSpec, as far as it is typed here."""
    return {
        "description": description,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "metadata": {
                "description": "Labels and annotations of the pods.",
                "type": "object",
                "properties": {
                    "labels": _strings("Labels of the pods."),
                    "annotations": _strings("Annotations of the pods."),
                },
            },
            "spec": {
                "description": "As the spec of a pod; see `kubectl explain pod.spec`. What is named here is checked at "
                "once, the rest when FlashBoot applies the Deployment; what the API server refuses then is shown in "
                "the condition Stalled.",
                "type": "object",
                "required": ["containers"],
                "properties": _pod(),
                **OPEN,
            },
        },
    }
