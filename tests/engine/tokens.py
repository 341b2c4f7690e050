"""Greedy tokens of a model in this process, by SGLang's own runner and forward pass on the CPU, without a server."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any, Final

from tests.engine import runtime

PROMPTS: Final = ((11, 12, 13, 14, 15), (900, 17, 256, 1023, 5, 5, 31))
"""Token numbers, no text: nothing here needs a tokenizer."""

LENGTH: Final = 4


def runner_for(folder: Path) -> Any:
    """SGLang's runner with the KV cache and the attention of this model: one for each process, SGLang allows no second.

    It serves other models, too, as long as they have as many layers and heads of the same width.
    """
    from sglang.srt.distributed import bootstrap
    from sglang.srt.model_executor.model_runner import ModelRunner

    config = runtime.publish(folder, max_total_tokens=256, disable_overlap_schedule=True, disable_radix_cache=True)
    bootstrap.init_layer_runtime(model_config=config)
    runner = ModelRunner(
        model_config=config,
        mem_fraction_static=0.5,
        gpu_id=0,
        nccl_port=0,
        server_args=runtime.published(),
    )
    runner.alloc_memory_pool()
    runner.init_attention_backends()
    runner.init_cuda_graphs()
    return runner


def greedy(runner: Any, model: Any) -> list[list[int]]:
    """For each prompt the tokens that `model` goes on with, in place of the runner's own model."""
    from sglang.benchmark.one_batch import decode, extend
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    requests = []
    for number, prompt in enumerate(PROMPTS):
        request = Req(
            rid=str(number),
            origin_input_text="",
            origin_input_ids=array("q", prompt),
            sampling_params=SamplingParams(temperature=0, max_new_tokens=LENGTH),
        )
        request.full_untruncated_fill_ids = request.origin_input_ids
        request.logprob_start_len = -1
        request.extend_end = len(request.origin_input_ids)
        requests.append(request)
    own, runner.model = runner.model, model
    try:
        runner.req_to_token_pool.clear()
        runner.token_to_kv_pool_allocator.clear()
        tokens, _, batch = extend(requests, runner)
        found = [[token] for token in tokens.tolist()]
        for _ in range(LENGTH - 1):
            tokens, _ = decode(tokens, batch, runner)
            for row, token in zip(found, tokens.tolist(), strict=True):
                row.append(token)
        return found
    finally:
        runner.model = own
