"""Where the checkout is and what it holds; all recipes name files through this."""

from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
REQUIREMENTS = REPO / "requirements"
CONTROLPLANE = REPO / "e2e" / "rack" / "controlplane"
EXAMPLE = REPO / "examples" / "plain-pytorch"
ENGINE_STUB = REPO / "e2e" / "engine_stub"
BUILD = REPO / "build"
