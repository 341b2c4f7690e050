"""SGLang's view of us: a model loader that attaches, or seeds when it is told to. It never loads in any other way."""

from __future__ import annotations

from typing import Any

from sglang.srt.model_loader.loader import BaseModelLoader

from flashboot_agent.core.errors import UnsupportedEngine
from flashboot_agent.engine.attach import attach
from flashboot_agent.engine.client import reported
from flashboot_agent.engine.log import log
from flashboot_agent.engine.offer import Sealed
from flashboot_agent.engine.seed import seed
from flashboot_agent.engine.session import baseline, client_for
from flashboot_agent.engine.settings import EngineSettings


class FlashBootLoader(BaseModelLoader):  # type: ignore[misc] # SGLang carries no types
    """`preloaded_weights_bytes`: what of the arena lay in memory when SGLang sampled it (engine/baseline.py)."""

    def __init__(self, load_config: Any, settings: EngineSettings) -> None:
        super().__init__(load_config)
        self._settings = settings

    def download_model(self, model_config: Any) -> None:
        raise UnsupportedEngine("FlashBoot does not download models; give --model-path a local folder")

    def load_model(self, *, model_config: Any, device_config: Any) -> Any:
        """The model in eval mode, its weights in a sealed arena."""
        client = client_for(self._settings, model_config, self.load_config.draft_model_idx)
        with reported(client):
            offer = client.wait()
            if isinstance(offer, Sealed):
                model = attach(offer, model_config, self.load_config, client)
                way, arena = "attached to", offer.arena
            else:
                model = seed(model_config, device_config, self.load_config, client)
                way, arena = "seeded", offer.arena
        self.preloaded_weights_bytes = baseline.report(client.place)
        client.attached()
        log.warning("%s: %s %s", client.who, way, arena)
        return model
