"""A small engine of the rack's stories: real weights through FlashBoot's public Python API, ready in seconds.

Stories about scaling, roll-outs, drains and autoscalers need many pods, not many SGLangs; two cores start a dozen of
these in the time of one. It runs in the engine's image, from a ConfigMap (light.py).

    GET /ready     200 once the weights are there
    GET /sum       what the weights add up to: equal on every replica of one revision
    POST /work     spends the CPU seconds that the body names
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch

from flashboot_agent.api import Request, attach_or_seed

MAX_WORK_SECONDS = 10.0


def draw(revision: str, mebibytes: int) -> dict[str, torch.Tensor]:
    """The checkpoint: a revision always gives the same bytes."""
    generator = torch.Generator().manual_seed(sum(revision.encode()))
    return {
        f"part.{number}": torch.randint(0, 2**31, (2**18,), generator=generator, dtype=torch.int32)
        for number in range(mebibytes)
    }


class Handler(BaseHTTPRequestHandler):
    answer: dict[str, object]
    ready: bool

    def do_GET(self) -> None:
        if self.path == "/sum":
            self._say(200, self.answer)
        else:
            self._say(200 if self.path == "/ready" and self.ready else 503, {"ready": self.ready})

    def do_POST(self) -> None:
        seconds = min(float(self.rfile.read(int(self.headers["content-length"]))), MAX_WORK_SECONDS)
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass
        self._say(200, {"seconds": seconds})

    def _say(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Probes come every second; the log is for what matters."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--mebibytes", type=int, default=16)
    parser.add_argument("--flavour", default="", help="part of the identity: another one is another arena")
    parser.add_argument("--never-ready", action="store_true", help="have the weights and fail every probe")
    known, _ = parser.parse_known_args()  # the rest is FlashBoot's
    request = Request.of(sys.argv[1:], identity={"flavour": known.flavour})
    weights = attach_or_seed(request, load=lambda: draw(request.revision + known.flavour, known.mebibytes))
    total = sum(int(tensor.sum(dtype=torch.int64)) for tensor in weights.values())
    Handler.answer = {"sum": total, "seeded": weights.seeded, "arena": weights.arena}
    Handler.ready = not known.never_ready
    print(f"{'seeded' if weights.seeded else 'attached'}: {total}", file=sys.stderr, flush=True)
    ThreadingHTTPServer(("", known.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
