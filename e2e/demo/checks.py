"""What the demo promises, each as a line with what was expected and what was found. One that fails fails the demo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from demo.settings import Settings
from demo.timeline import Replica
from kit.engines import Answer, first_difference


@dataclass(frozen=True)
class Check:
    what: str
    passed: bool
    found: str

    def __str__(self) -> str:
        return f"{'pass' if self.passed else 'FAIL'}  {self.what}: {self.found}"


def token_differences(reference: Answer, seed: Answer, answers: Sequence[Answer]) -> list[str]:
    """Every difference to plain SGLang or to the seed's words before the scale; empty when all are equal."""
    pairs = [(reference, seed), *((other, answer) for answer in answers for other in (reference, seed))]
    return [difference for one, other in pairs if (difference := first_difference(one, other)) is not None]


def source_bytes_out(replicas: Sequence[Replica]) -> int:
    """Bytes that left the node of the seed."""
    return sum(replica.bytes_out for replica in replicas if replica.path == "seed")


def checks(settings: Settings, replicas: Sequence[Replica], differences: Sequence[str]) -> list[Check]:
    clones = [replica for replica in replicas if replica.path == "clone"]
    seeds = [replica for replica in replicas if replica.path == "seed"]
    digests = sorted({replica.digest for replica in replicas})
    arena = max(replica.bytes for replica in replicas)
    out = source_bytes_out(replicas)
    early = sum(clone.early for clone in clones)
    return [
        Check(
            f"{settings.replicas} replicas, one of them loaded the checkpoint",
            (len(seeds), len(clones)) == (1, settings.replicas - 1),
            f"{len(seeds)} seed, {len(clones)} clones",
        ),
        Check(
            "every replica's greedy tokens equal the seed's and plain SGLang's",
            not differences,
            "equal" if not differences else "; ".join(differences[:3]),
        ),
        Check("all arenas have one digest", len(digests) == 1, ", ".join(digests)),
        Check(
            f"at most {settings.source_share} arenas left the source for {len(clones)} clones",
            out <= settings.source_share * arena,
            f"{out} of {arena} bytes: {out / arena:.3f} arenas",
        ),
        Check(
            f"at least {settings.early_clones} clones were complete before their engine asked",
            early >= settings.early_clones,
            f"{early} of {len(clones)}",
        ),
    ]
