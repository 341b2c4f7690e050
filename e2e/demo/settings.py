"""Names, places and deadlines of the demo. The deadlines are for two busy cores."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Settings:
    example: Path = ROOT / "examples" / "modelreplica.yaml"
    namespace: str = "serving"
    name: str = "qwen3-moe"
    replicas: int = 4
    checkpoint: str = "qwen3-moe-demo"
    """Folder below the models folder of the rack, and below /models in the pods."""

    out: Path = ROOT / "build" / "demo"
    keep: bool = field(default_factory=lambda: os.environ.get("KEEP", "") not in ("", "0"))
    """Leave the cluster up at the end (KEEP=1)."""

    own_cluster: str | None = field(default_factory=lambda: os.environ.get("KUBECONFIG") or None)
    """A cluster that is there already (KUBECONFIG): nothing is built or started, and only our release is removed."""

    install_seconds: float = 180
    engine_seconds: float = 420
    """Start of one SGLang engine: about 30 s alone on two cores."""
    scale_seconds: float = 420
    """Three engines at once on two cores take about 90 s."""

    source_share: float = 1.02
    """The most that may leave the source for all clones, in arenas."""
    early_clones: int = 2
    """How many clones at least are sealed before their engine first asks."""
