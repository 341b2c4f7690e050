"""A broadcast of torch's gloo between two processes: `gloo RANK PORT BYTES`, in the peers' environment.

Both are told to run at the same time; rank 1 is the contestant. Connecting is not in the time.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import torch.distributed as dist

from bench.kit import inside


def main() -> None:
    rank, port, nbytes = (int(word) for word in sys.argv[1:])
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    source = torch.arange(256, dtype=torch.uint8).repeat(nbytes // 256)
    data = source if rank == 0 else torch.zeros(nbytes, dtype=torch.uint8)

    def run(check: bool = False) -> dict[str, Any]:
        if rank:
            data.zero_()
        dist.barrier()
        with inside.Meter() as meter:
            dist.broadcast(data, 0)
        if check and not torch.equal(data, source):
            raise ValueError("the broadcast differs from the source")
        return meter.sample

    def join() -> dict[str, Any]:
        dist.init_process_group("gloo", rank=rank, world_size=2)
        return {}

    inside.serve({"run": run, "join": join})


if __name__ == "__main__":
    main()
