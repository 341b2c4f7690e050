"""The bytes that a loader reports as `preloaded_weights_bytes`: what lay in memory at SGLang's baseline, and that once.

SGLang (0.5.23) samples free memory before the first model of a process loads, and sizes the KV cache from that sample.
When all models are loaded it adds up `preloaded_weights_bytes` over all of them, main and draft, and puts the sum back
onto the sample, as if that memory had been free. So it does not matter how a model comes by its weights, but what was
in memory: an arena that was allocated at the sample counts, even if this engine has to seed after all; one that is made
later does not, even if this engine attaches to it. Several models over one arena (a model that is loaded again) count
it once. Each rank is a process with a sample of its own; on the CPU SGLang gives each rank an equal share of the node's
memory, one rank per NUMA node.
"""

from __future__ import annotations

from flashboot_agent.wire.place import Place


class Baseline:
    """What one process found in memory. Used by the thread that loads models."""

    def __init__(self) -> None:
        self._resident: dict[Place, int] = {}

    def sampled(self, place: Place, resident: int) -> None:
        """Right before a sample, `resident` bytes of the place's arena were allocated. The first word counts: the agent
        gives it when the arenas of all ranks and drafts of the pod are allocated, which is before the first sample."""
        self._resident.setdefault(place, resident)

    def report(self, place: Place) -> int:
        """Bytes to report for a model at `place`: those of the sample, and 0 when they were reported before."""
        resident = self._resident.get(place, 0)
        self._resident[place] = 0
        return resident

    def forget(self, place: Place) -> None:
        """The engine of this place ended (tests run several in one process)."""
        self._resident.pop(place, None)
