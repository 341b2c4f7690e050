"""What is applied for a ModelReplica, made once for each template: looks are many and change nothing of it. Pure.

To bring a template together with what FlashBoot adds, and to digest it, costs more than all else that a quiet look
does; for a hundred groups a hundred times so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flashboot_operator.api.modelreplica import Spec
from flashboot_operator.core.facts import Trouble
from flashboot_operator.core.groupset import stateful_set, template_digest
from flashboot_operator.core.workload import Object, TemplateRefused, deployment, pod_template


class Design:
    """Of one ModelReplica and one template. What comes out is shared: not to be changed."""

    def __init__(self, metadata: Mapping[str, Any], spec: Spec) -> None:
        self.refused: Trouble | None = None
        """Why no pod can be made from the template."""
        self.digest = ""
        """Of the template, where a replica is a group."""
        self._metadata = dict(metadata)
        self._spec = _unnumbered(spec)
        self._template: Object | None = None
        self._sets: dict[str, Object] = {}
        try:
            if spec.group.size > 1:
                self.digest = template_digest(metadata, spec)
            else:
                self._template = pod_template(metadata["name"], spec)
        except TemplateRefused as error:
            self.refused = Trouble(error.reason, str(error))

    def fits(self, metadata: Mapping[str, Any], spec: Spec) -> bool:
        """Whether it is of this ModelReplica and this spec, whatever the number of replicas."""
        return self._metadata == metadata and self._spec == _unnumbered(spec)

    def deployment(self, spec: Spec) -> Object:
        """Only while nothing is refused."""
        return deployment(self._metadata, spec, self._template)

    def stateful_set(self, group: str) -> Object:
        """Likewise."""
        if group not in self._sets:
            self._sets[group] = stateful_set(self._metadata, self._spec, group, self.digest)
        return self._sets[group]


def _unnumbered(spec: Spec) -> Spec:
    return spec.model_copy(update={"replicas": None})
