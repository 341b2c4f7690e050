"""The ModelReplicas as values, read again only when their spec changes: a status write changes nothing of it."""

from __future__ import annotations

from dataclasses import dataclass

from flashboot_operator.api.modelreplica import Spec
from flashboot_operator.core.design import Design
from flashboot_operator.core.expected import template_hash
from flashboot_operator.core.facts import Key
from flashboot_operator.core.plan import Owner
from flashboot_operator.kube.client import Object
from flashboot_operator.reconcile.apply import metadata_of


@dataclass(frozen=True)
class _Read:
    spec: Object
    """As the API server has it."""
    uid: str
    going: bool
    owner: Owner
    design: Design | None


class Owners:
    def __init__(self) -> None:
        self._read: dict[Key, _Read] = {}

    def of(self, key: Key, obj: Object) -> Owner:
        """Raises ValidationError for a spec that this operator does not understand."""
        meta, going = obj["metadata"], bool(obj["metadata"].get("deletionTimestamp"))
        last = self._read.get(key)
        if last is None or (last.spec, last.uid, last.going) != (obj["spec"], meta["uid"], going):
            spec = Spec.model_validate(obj["spec"])
            design = self._design(key, meta["uid"], spec, last)
            refused = design is not None and design.refused is not None
            owner = Owner(*key, meta["uid"], spec, template_hash(spec), going, refused)
            self._read[key] = last = _Read(obj["spec"], meta["uid"], going, owner, design)
        return last.owner

    def design(self, key: Key) -> Design | None:
        """Of the owner that was read last; None for one that adopts pods."""
        return self._read[key].design

    def forget(self, key: Key) -> None:
        self._read.pop(key, None)

    def _design(self, key: Key, uid: str, spec: Spec, last: _Read | None) -> Design | None:
        if spec.template is None:
            return None
        metadata = metadata_of(*key, uid)
        if last is not None and last.design is not None and last.design.fits(metadata, spec):
            return last.design
        return Design(metadata, spec)
