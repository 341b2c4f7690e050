"""`python -m bench.delta.paced_server FOLDER BYTES_PER_SECOND`: serves files at this rate, for what a link would take.
Says its port. A process of its own, so that its work is not the receiver's."""

from __future__ import annotations

import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

STEP = 16 << 10


def main() -> None:
    folder, rate = Path(sys.argv[1]), float(sys.argv[2])

    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            data = (folder / Path(self.path).name).read_bytes()
            self.send_response(200)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            began = time.monotonic()
            for at in range(0, len(data), STEP):
                self.wfile.write(data[at : at + STEP])
                time.sleep(max(0.0, began + (at + STEP) / rate - time.monotonic()))

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        print(server.server_port, flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
