"""`flashboot-door`: serve (the default), or `healthcheck` for an exec probe.

What serving needs is imported only for serving, so that a health check stays cheap (health.py says why).
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from flashboot_agent.door import health

PLUGIN = "plugins/csi.flashboot.io"
"""Our folder below kubelet's root; the name is wire.door.DRIVER_NAME."""


def main(argv: list[str] | None = None) -> None:
    options = _options(argv)
    if options.command == "healthcheck":
        sys.exit(health.ask(options.kubelet / PLUGIN / health.SOCKET))
    if not options.node:
        sys.exit("set FLASHBOOT_NODE_NAME (the chart does, from the pod's own fields)")
    from flashboot_agent.door.serve import serve

    serve(options.node, options.kubelet, options.run, options.agent_uid)


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="flashboot-door", description="CSI driver of the inline volume that gives a pod its socket to the agent."
    )
    parser.add_argument("command", nargs="?", choices=["serve", "healthcheck"], default="serve")
    env = os.environ
    parser.add_argument("--node", default=env.get("FLASHBOOT_NODE_NAME"), help="the Kubernetes node's name")
    parser.add_argument(
        "--run", type=Path, default=env.get("FLASHBOOT_RUN", "/run/flashboot"), help="the node's folder"
    )
    parser.add_argument(
        "--kubelet", type=Path, default=env.get("FLASHBOOT_KUBELET", "/var/lib/kubelet"), help="kubelet's root folder"
    )
    parser.add_argument(
        "--agent-uid", type=int, default=int(env.get("FLASHBOOT_AGENT_UID", "65532")), help="owner of pods' folders"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
