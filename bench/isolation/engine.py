"""An SGLang engine on this CPU: `engine FOLDER`, in the engine's environment. A run is a fixed number of tokens."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from bench.kit import inside
from demo.checkpoint import make_checkpoint
from tests.engine.servers import Server

_PROMPTS = ("The agent copies", "A distant star", "Every node waits", "Weights travel", "One more time", "A short text")


def main() -> None:
    inside.answers_apart()
    folder = Path(sys.argv[1])
    model = folder / "model"
    make_checkpoint(model, size="tiny")
    server = Server(model, folder, plugin=None)
    try:
        server.wait_ready()
        expected = [server.tokens(prompt) for prompt in _PROMPTS]

        def run() -> dict[str, Any]:
            with inside.Meter() as meter:
                tokens = [server.tokens(prompt) for prompt in _PROMPTS]
            if tokens != expected:
                raise ValueError("the engine answers otherwise than before")
            return {**meter.sample, "tokens": sum(map(len, tokens))}

        inside.serve({"run": run})
    finally:
        server.stop()


if __name__ == "__main__":
    main()
