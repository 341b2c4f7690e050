"""Block FP8 at the loader's level: SGLang's branch for GPUs, run over host memory, as a seed and attached.

An engine on a CPU is refused such a model (SGLang needs AMX kernels there), so two things are bent here: SGLang's
module is told that it is not on a CPU, and our refusal is lifted. What DeepGEMM does to scales (packed ue8m0) needs a
GPU.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from flashboot_agent.engine import support, walk
from tests.engine import trios
from tests.engine.runtime import QUANTISED
from tests.engine.trios import Trio


@pytest.fixture(scope="module", params=QUANTISED)
def trio(request: pytest.FixtureRequest, checkpoints: dict[str, Path], hooked: None) -> Iterator[Trio]:
    from sglang.srt.layers.quantization import fp8

    folder = Path(tempfile.mkdtemp(prefix="fb-"))
    with pytest.MonkeyPatch.context() as bent:
        bent.setattr(fp8, "_is_cpu", False)
        bent.setattr(support, "_require_plain_weights", lambda config: None)
        with trios.three(checkpoints[request.param], folder / "agent.sock") as made:
            yield made
    shutil.rmtree(folder)


def test_seed_and_attached_model_are_what_plain_sglang_is(trio: Trio) -> None:
    assert trios.differences(trio.plain, trio.seeded, trio.layout) == []
    assert trios.differences(trio.plain, trio.attached, trio.layout) == []


def test_weights_are_in_8_bits_with_a_scale_for_each_block_and_its_metadata(trio: Trio) -> None:
    found = {str(item): item.tensor for item in walk.tensors(trio.attached)}
    scales = {name: tensor for name, tensor in found.items() if name.endswith("weight_scale_inv")}
    assert len(scales) > 6
    for name, scale in scales.items():
        weight = found[name.removesuffix("_scale_inv")]
        assert weight.dtype == torch.float8_e4m3fn
        assert scale.dtype == torch.float32
        assert scale.shape[-2:] == tuple(-(-size // 128) for size in weight.shape[-2:])
        assert scale.format_ue8m0 is False
