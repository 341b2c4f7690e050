"""`python -m rack`: up, down, status, enter, kill, boot, rate, link."""

import argparse
import sys

import rack
from rack.settings import DEFAULT_LINK_MBIT, DEFAULT_NODES
from rack.status import describe
from setup_env.errors import SetupError

_USE = """
The rack is up. In this shell:

    export KUBECONFIG={kubeconfig} PATH={bin}:$PATH
    kubectl get nodes

Models for the pods go into {models} (hostPath /srv/models on every node); logs are in {logs}.
`make rack-down` removes everything.
"""


def main() -> int:
    """Parse, do, and print an error of ours without a traceback."""
    parser = argparse.ArgumentParser(prog="rack", description=rack.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    starter = commands.add_parser("up", help="bring up a fresh rack")
    starter.add_argument("--nodes", type=int, default=DEFAULT_NODES)
    starter.add_argument("--link-mbit", type=float, default=DEFAULT_LINK_MBIT, help="rate of each node's link")
    commands.add_parser("down", help="remove the rack, whatever state it is in")
    commands.add_parser("status", help="what runs, and how much memory it takes")
    enter = commands.add_parser("enter", help="run a command on a node (a shell by default)")
    enter.add_argument("node")
    enter.add_argument("argv", nargs=argparse.REMAINDER)
    for name, text in (("kill", "cut a node's power"), ("boot", "start a killed node")):
        commands.add_parser(name, help=text).add_argument("node")
    rate = commands.add_parser("rate", help="limit a node's link; 0 lifts the limit")
    rate.add_argument("node")
    rate.add_argument("mbit", type=float)
    link = commands.add_parser("link", help="pull or plug a node's cable")
    link.add_argument("node")
    link.add_argument("state", choices=("up", "down"))
    try:
        return _do(parser.parse_args())
    except (rack.RackError, SetupError, ValueError) as e:
        print(f"rack: {e}", file=sys.stderr)
        return 1


def _do(arguments: argparse.Namespace) -> int:
    match arguments.command:
        case "up":
            rack.up(arguments.nodes, arguments.link_mbit)
            print(_USE.format(kubeconfig=rack.KUBECONFIG, bin=rack.BIN, models=rack.MODELS, logs=rack.LOGS))
        case "down":
            rack.down()
            print("the rack is down, nothing of it is left")
        case "status":
            print(describe())
        case "enter":
            return rack.enter(arguments.node, arguments.argv or ["/bin/bash"])
        case "kill":
            rack.kill_node(arguments.node)
        case "boot":
            rack.boot_node(arguments.node)
        case "rate":
            rack.set_rate(arguments.node, arguments.mbit)
        case "link":
            rack.set_link(arguments.node, up=arguments.state == "up")
    return 0


if __name__ == "__main__":
    sys.exit(main())
