"""The committed CRDs are what the models say."""

from __future__ import annotations

from pathlib import Path

from flashboot_operator import crdgen

CRDS = Path(__file__).resolve().parents[2] / "crds"


def test_the_committed_files_are_the_generated_ones() -> None:
    assert {p.name: p.read_text(encoding="utf-8") for p in CRDS.iterdir()} == crdgen.files(), (
        "run `make crds` and commit"
    )


def test_the_output_is_stable() -> None:
    assert crdgen.files() == crdgen.files()
