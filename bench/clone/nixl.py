"""A WRITE of nixl over UCX between two processes: `nixl source|target BYTES`, in the peers' environment.

The source is the contestant: its time ends when the target's memory has every byte. Connecting is not in the time.
"""

from __future__ import annotations

import base64
import sys
from typing import Any

import torch
from nixl_cu12._api import nixl_agent, nixl_agent_config

from bench.kit import inside


def main() -> None:
    inside.answers_apart()
    role, nbytes = sys.argv[1], int(sys.argv[2])
    agent = nixl_agent(role, nixl_agent_config(backends=["UCX"]))
    pattern = torch.arange(256, dtype=torch.uint8).repeat(nbytes // 256)
    data = pattern if role == "source" else torch.zeros(nbytes, dtype=torch.uint8)
    agent.register_memory(data)
    here = [(data.data_ptr(), nbytes, 0)]
    there: dict[str, Any] = {}

    def meet(name: str, metadata: str, address: int) -> dict[str, Any]:
        agent.add_remote_agent(base64.b64decode(metadata))
        agent.make_connection(name)
        there.update(name=name, descriptors=agent.get_xfer_descs([(address, nbytes, 0)], "DRAM"))
        return {}

    def run() -> dict[str, Any]:
        mine = agent.get_xfer_descs(here, "DRAM")
        with inside.Meter() as meter:
            transfer = agent.initialize_xfer("WRITE", mine, there["descriptors"], there["name"])
            state = agent.transfer(transfer)
            while state == "PROC":
                state = agent.check_xfer_state(transfer)
        agent.release_xfer_handle(transfer)
        if state != "DONE":
            raise RuntimeError(f"the transfer came to {state}")
        return meter.sample

    def check() -> dict[str, Any]:
        if not torch.equal(data, pattern):
            raise ValueError("the target's memory differs from the source's")
        return {}

    metadata = base64.b64encode(agent.get_agent_metadata()).decode()
    inside.serve({"meet": meet, "run": run, "check": check}, metadata=metadata, address=data.data_ptr())


if __name__ == "__main__":
    main()
