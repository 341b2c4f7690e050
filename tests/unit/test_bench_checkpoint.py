"""The benchmarks' checkpoint: as many tensors as it says, the same bytes each time, and sound to the agent's reader."""

from pathlib import Path

import pytest

from bench.load.checkpoint import Spec, files, specs, write
from flashboot_agent.load.load import open_checkpoint


@pytest.mark.parametrize("total", [200 << 20, 3072 << 20])
def test_it_has_the_tensors_of_a_large_model_and_about_the_size_asked_for(total: int) -> None:
    found = specs(total)
    assert len({spec.name for spec in found}) == len(found) == 19_945
    assert 0.9 * total < sum(spec.nbytes for spec in found) <= total


def test_the_same_tensors_give_the_same_sound_files(tmp_path: Path) -> None:
    wanted = [Spec(f"{i}.weight", "BF16", (i + 1, 3)) for i in range(9)]
    wanted += [Spec("gate", "F32", (5,)), Spec("scale", "F8_E4M3", (7, 2)), Spec("map", "I32", (4,))]
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, wanted)
    assert [file.read_bytes() for file in files(tmp_path / "one")] == [f.read_bytes() for f in files(tmp_path / "two")]
    with open_checkpoint(tmp_path / "one") as checkpoint:
        placed = {tensor.name: (tensor.dtype, tensor.shape) for tensor in checkpoint.plan.tensors}
    assert placed == {spec.name: (spec.dtype, spec.shape) for spec in wanted}
    assert len(files(tmp_path / "one")) == 4
