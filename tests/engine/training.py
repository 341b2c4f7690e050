"""A trainer as they are in PyTorch: FP32 masters, AdamW, checkpoints in the Hugging Face format, in BF16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.engine.tokens import PROMPTS


class Trainer:
    """Of the model in a folder, which learns to go on with a prompt by one token again and again."""

    def __init__(self, checkpoint: Path, rate: float) -> None:
        from transformers import AutoModelForCausalLM

        self.model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate)

    def step(self) -> None:
        for number, prompt in enumerate(PROMPTS):
            ids = torch.tensor([[*prompt, *[40 + number] * 4]])
            self.model(input_ids=ids, labels=ids).loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()

    def served(self) -> dict[str, Any]:
        """By the names of the checkpoint; transformers has fused what these cut into experts."""
        from transformers.core_model_loading import revert_weight_conversion

        cast = {name: value.detach().to(torch.bfloat16) for name, value in self.model.state_dict().items()}
        return dict(revert_weight_conversion(self.model, cast))

    def save(self, folder: Path) -> Path:
        self.model.config.dtype = torch.bfloat16
        cast = {name: value.detach().to(torch.bfloat16) for name, value in self.model.state_dict().items()}
        self.model.save_pretrained(folder, state_dict=cast)
        return folder
