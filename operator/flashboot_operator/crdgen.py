"""Make `crds/*.yaml` from the pydantic models: `python -m flashboot_operator.crdgen [FOLDER]`.

Kubernetes wants *structural* schemas: no `$ref`, no `anyOf` for optional fields, no `title`. Known generators lose
defaults on the way, so this one is ours. The output is stable: the same models give the same bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from flashboot_operator.api import base
from flashboot_operator.api.modelreplica import Spec
from flashboot_operator.api.status import Status
from flashboot_operator.podschema import pod_template

Schema = dict[str, Any]
KEPT = (
    "description",
    "type",
    "format",
    "enum",
    "default",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
    "required",
    "properties",
    "items",
    "additionalProperties",
    "x-kubernetes-validations",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-preserve-unknown-fields",
)
"""All that we emit, in this order; anything else that pydantic may say is an error here, never lost in silence."""

DROPPED = {"title", "x-flashboot-schema"}

COLUMNS = [
    ("Model", "string", ".spec.model.name", "Model that is served", 0),
    ("Desired", "integer", ".spec.replicas", "Replicas wanted", 0),
    ("Ready", "integer", ".status.readyReplicas", "Replicas ready", 0),
    (
        "State",
        "string",
        '.status.conditions[?(@.type=="Ready")].reason',
        "Reason of the condition Ready: why it is so, or not",
        0,
    ),
    ("Source", "string", ".status.domains[0].source", "Whose arena feeds new replicas", 0),
    ("Domain", "string", ".status.domains[0].name", "NVLink domain of the source", 1),
    ("Boot-ms", "integer", ".status.lastClone.apiReadyMilliseconds", "Milliseconds the last scale-up took", 0),
    ("Age", "date", ".metadata.creationTimestamp", "Age", 0),
]


def _folded(schema: Schema, defs: dict[str, Schema]) -> Schema:
    """With references and optional types folded in; what stands beside them wins."""
    node = dict(schema)
    while True:
        if ref := node.pop("$ref", None):
            node = {**defs[ref.rsplit("/", 1)[1]], **node}
        elif (options := node.pop("anyOf", None)) is not None:
            kept = [o for o in options if o.get("type") != "null"]
            if len(kept) != 1:
                raise ValueError(f"not structural: {options}")
            node = {**kept[0], **node}
            if node.get("default", ...) is None:
                node.pop("default")
        else:
            return node


def structural(schema: Schema, defs: dict[str, Schema]) -> Schema:
    """One node of a JSON schema of pydantic as a node of a structural schema."""
    if schema.get("x-flashboot-schema") == "pod-template":
        return pod_template(schema["description"])
    node = _folded(schema, defs)
    if "const" in node:
        node["enum"] = [node.pop("const")]
    if node.get("type") == "integer":
        node["format"] = "int64"
    if "properties" in node:
        node["properties"] = {name: structural(child, defs) for name, child in node["properties"].items()}
    if "items" in node:
        node["items"] = structural(node["items"], defs)
        node.setdefault("x-kubernetes-list-type", "atomic")
    if node.get("type") == "object" and isinstance(node.get("default"), dict):
        # In full: the API server runs CEL rules over a default before it fills in the fields' own.
        node["default"] = {name: child["default"] for name, child in node["properties"].items() if "default" in child}
    if "description" in node:
        node["description"] = " ".join(node["description"].split())
    unknown = node.keys() - set(KEPT) - DROPPED
    if unknown:
        raise ValueError(f"the generator does not know what to do with {sorted(unknown)} in {node}")
    return {key: node[key] for key in KEPT if key in node}


def schema_of(model: type[BaseModel]) -> Schema:
    raw = model.model_json_schema(by_alias=True)
    return structural(raw, raw.pop("$defs", {}))


def model_replica() -> Schema:
    """The CustomResourceDefinition of ModelReplica."""
    root = {
        "description": "ModelReplica: one model at one revision, served by replicas that clone their weights "
        "from a resident one.",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": schema_of(Spec),
            "status": schema_of(Status),
        },
        "x-kubernetes-validations": [
            {
                "rule": "self.metadata.name.size() <= 63",
                "message": "metadata.name must be at most 63 characters: it becomes the value of a label",
            }
        ],
    }
    columns = [{"name": n, "type": t, "jsonPath": p, "description": d, "priority": q} for n, t, p, d, q in COLUMNS]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{base.PLURAL}.{base.GROUP}"},
        "spec": {
            "group": base.GROUP,
            "names": {
                "kind": base.KIND,
                "listKind": f"{base.KIND}List",
                "plural": base.PLURAL,
                "singular": "modelreplica",
                "shortNames": ["mrep"],
                "categories": ["flashboot"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": base.VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": root},
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": columns,
                }
            ],
        },
    }


def served_schema() -> Schema:
    """What an API server has to serve for this operator."""
    schema: Schema = model_replica()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


class _Dumper(yaml.SafeDumper):
    """Without anchors, so that the file reads as it is."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def files() -> dict[str, str]:
    """File name → text."""
    head = "# Generated by `make crds` from operator/flashboot_operator/api; do not edit.\n"
    text = yaml.dump(model_replica(), Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
    return {f"{base.GROUP}_{base.PLURAL}.yaml": head + text}


def main(argv: list[str]) -> int:
    folder = Path(argv[1] if len(argv) > 1 else "crds")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files().items():
        (folder / name).write_text(text, encoding="utf-8")
        sys.stdout.write(f"{folder / name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
