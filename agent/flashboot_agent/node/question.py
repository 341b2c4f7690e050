"""What one rank asked for, and what it is told now: from its hello, the operator's word, and what is on this node.

Decides and changes nothing; the conversation (node/session.py) does what comes out.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashboot_agent.core.errors import IdentityMismatch
from flashboot_agent.node import rules
from flashboot_agent.node.arena import Arena
from flashboot_agent.node.matching import Matching
from flashboot_agent.node.pods import Pod, Rank
from flashboot_agent.node.state import NodeState
from flashboot_agent.wire import attach
from flashboot_agent.wire.base import now
from flashboot_agent.wire.desired import WantedArena


@dataclass(frozen=True)
class Decision:
    """Not to be kept: it holds the arena."""

    answer: rules.Answer
    note: str
    """What it waits for."""
    wanted: WantedArena | None = None
    arena: Arena | None = None
    differs: IdentityMismatch | None = None
    """What stands between the rank and the arena that the operator names."""


class Question:
    """Of one connection, from its hello on."""

    def __init__(self, node: NodeState, pod: Pod, hello: attach.Hello) -> None:
        """Raises BadRequest when the pod has too many ranks."""
        self._node = node
        self._pod = pod
        self._matching = Matching(hello.identity, hello.place, node.settings.mismatch_seconds)
        self.hello = hello
        self.rank: Rank = node.pods.hello(pod, hello.place, self._matching.identity, now(), attached=hello.attached)

    @property
    def differed(self) -> bool:
        """An arena that the operator named was another's."""
        return self._matching.differed

    def wanted(self) -> WantedArena | None:
        """What the operator wants for this rank."""
        return self._node.wanted_by(self._pod).get(self.hello.place)

    def decide(self) -> Decision:
        """What the plug-in is told now, why, and about which arena."""
        wanted = self.wanted()
        name = wanted.arena if wanted else self.rank.told.arena
        arena = self._node.store.get(name) if name else None
        mismatch = self._matching.mismatch(arena, wanted)
        if wanted is not None and (mismatch or arena is None or arena.state != "sealed"):
            twin = self._matching.twin(self._node.store, wanted)
            arena, mismatch = (twin, None) if twin is not None else (arena, mismatch)
        if mismatch is not None:
            why = "its engine has another arena" if self.hello.attached else None
            why = why or self._matching.refused(self._pod.uid, wanted)
            differs = IdentityMismatch(f"{mismatch}; {why or 'the operator looks for an arena of this identity'}")
            return Decision("refuse" if why else "coming", str(differs), differs=differs)
        state = arena.state if arena else None
        if wanted is None and arena is not None and not self.hello.attached:
            state = None  # a pod that is listed nowhere gets nothing new
        loads = wanted is not None and self._node.loading(wanted, used=True)
        answer, note = rules.answer(self._pod.uid, wanted, state, loads=loads, taken=self._taken(wanted))
        if answer == "ready" and not self.hello.attached and (late := self._unallocated()):
            answer, note = "coming", f"all bytes are here; no memory is reserved yet for {', '.join(late)}"
        return Decision(answer, note, wanted, arena)

    def coming(self, decision: Decision) -> attach.Coming:
        """How far the arena is."""
        arena, note = decision.arena, decision.note
        name = decision.wanted.arena if decision.wanted else ""
        filler = self._node.clones.get(name) or self._node.loads.get(name)
        if filler is not None and (arena is None or arena.state != "sealed"):
            note = filler.problem.message if filler.problem else filler.note
        return attach.Coming(
            allocated=arena is not None and not self._unallocated(),
            bytes=arena.nbytes if arena else 0,
            watermark=arena.watermark if arena else 0,
            note=note[:4096],
        )

    def _taken(self, wanted: WantedArena | None) -> bool:
        """Another process of this rank, a copy of the model in the same pod, was asked to fill the arena."""
        copies = [each for each in self._node.sessions if each.question is not self and each.pod is self._pod]
        return wanted is not None and any(each.asked == wanted.arena for each in copies)

    def _unallocated(self) -> list[str]:
        """The memory-sampling rule: other ranks of this replica whose memory is not reserved yet."""
        held = {arena.name for arena in self._node.store.all()}
        asked = [each.question for each in self._node.sessions if each.question is not None and each.pod is self._pod]
        here = {self.hello.place} | {each.hello.place for each in asked if each._has_twin()}
        others = {place: each for place, each in self._node.wanted_by(self._pod).items() if place not in here}
        here_late = [f"rank {place} of this pod" for place in rules.unallocated(self._pod.uid, others, held)]
        wanted = self.wanted()
        return here_late + (wanted.elsewhere.get(self._pod.uid, []) if wanted is not None else [])

    def _has_twin(self) -> bool:
        """Whether a sealed arena of exactly its identity is here, whatever the operator names: it gets that."""
        wanted = self.wanted()
        return wanted is not None and self._matching.twin(self._node.store, wanted) is not None
