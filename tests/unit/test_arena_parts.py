"""The parts beside an arena's bytes: who uses it, who feeds it, how fast the link is, what a clone is told."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from flashboot_agent.core.errors import UnknownArena
from flashboot_agent.node.feeds import Feed, Feeds
from flashboot_agent.node.leases import Leases
from flashboot_agent.node.link import link_speed
from flashboot_agent.node.settings import Settings

ENV = {"FLASHBOOT_NODE_NAME": "n1", "FLASHBOOT_POD_IP": "10.0.0.1"}


def test_memory_goes_once_and_only_when_nobody_uses_it() -> None:
    given_up: list[bool] = []
    leases = Leases("arena-1", lambda: given_up.append(True))
    leases.enter("b")
    leases.enter("b")
    assert leases.read
    assert not leases.revoke(0)
    with pytest.raises(UnknownArena, match="arena-1 was dropped"):
        leases.enter("c")
    for use in (leases.pinned, leases.here):
        with pytest.raises(UnknownArena, match="arena-1 was dropped"), use():
            pass
    leases.leave("b")
    assert given_up == []
    leases.leave("b")
    assert given_up == [True]
    assert leases.revoke(0)
    assert given_up == [True]


def test_who_is_shut_lets_nobody_in_and_a_child_that_reads_forbids_it() -> None:
    """An eviction must not take the memory from under a child, nor let one in after it looked."""
    given_up: list[bool] = []
    leases = Leases("arena-1", lambda: given_up.append(True))
    leases.enter("b")
    assert not leases.shut()
    leases.enter("c")
    leases.leave("b")
    leases.leave("c")
    assert leases.shut()
    assert given_up == [], "giving up may take a while; it is left to the revocation"
    with pytest.raises(UnknownArena, match="arena-1 was dropped"):
        leases.enter("d")
    assert leases.revoke(0)
    assert given_up == [True]


def test_a_revocation_waits_for_the_last_user() -> None:
    leases = Leases("arena-1", lambda: None)
    pinned, let_go = threading.Event(), threading.Event()

    def work() -> None:
        with leases.pinned():
            pinned.set()
            let_go.wait(20)

    thread = threading.Thread(target=work)
    thread.start()
    assert pinned.wait(20)
    threading.Timer(0.01, let_go.set).start()
    assert leases.revoke(20)
    thread.join()


def test_a_child_counts_while_it_is_connected_and_a_moment_after() -> None:
    clock = [100.0]
    leases = Leases("arena-1", lambda: None, clock=lambda: clock[0])
    leases.enter("b")
    clock[0] = 1000
    assert leases.children() == ["b"]
    leases.leave("b")
    assert not leases.read
    clock[0] = 1004
    assert leases.children() == ["b"]
    clock[0] = 1006
    assert leases.children() == []


def test_bytes_are_told_by_peer_and_transport() -> None:
    feeds = Feeds(2)
    feeds.begin(0, Feed("a", "tcp", "why"))
    feeds.begin(1, Feed("b", "map", "why"))
    assert not feeds.arrived(0, 5, starved=False)
    assert feeds.arrived(0, 0, starved=True), "news"
    feeds.arrived(1, 7, starved=False)
    feeds.begin(0, Feed("b", "tcp", "why"))
    feeds.arrived(0, 1, starved=False)
    assert [(path.node, path.transport, path.bytes_in) for path in feeds.paths()] == [
        ("a", "tcp", 5),
        ("b", "map", 7),
        ("b", "tcp", 1),
    ]
    assert feeds.bytes_by_transport() == {"tcp": 6, "map": 7}
    assert not feeds[0].starved


def link(root: Path, speed: str | None, route: str = "eth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000") -> Path:
    (root / "proc/net").mkdir(parents=True)
    (root / "proc/net/route").write_text(
        f"Iface\tDestination\tGateway\nlo\t0000007F\t0\t1\t0\t0\t0\t000000FF\n{route}\n"
    )
    if speed is not None:
        (root / "sys/class/net/eth0").mkdir(parents=True)
        (root / "sys/class/net/eth0/speed").write_text(speed)
        (root / "sys/class/net/eth0/device").mkdir()
    return root


def test_the_link_is_as_fast_as_the_device_of_the_default_route_says(tmp_path: Path) -> None:
    assert link_speed(link(tmp_path / "a", "10000\n")) == 1_250_000_000
    for number, speed in enumerate(("-1\n", "", None)):
        assert link_speed(link(tmp_path / str(number), speed)) is None
    assert link_speed(link(tmp_path / "b", "10\n", route="")) is None
    assert link_speed(tmp_path / "nothing") is None
    veth = link(tmp_path / "veth", "10000\n")
    (veth / "sys/class/net/eth0/device").rmdir()
    assert link_speed(veth) is None, "a veth knows nothing of the link behind it"


def test_settings_of_the_data_path_have_units() -> None:
    plain = Settings.from_env(ENV)
    assert (plain.overdue_floor_seconds, plain.nice, plain.link_bytes_per_second) == (1.0, 10, None)
    assert plain.egress_bytes_per_second == 0
    told = Settings.from_env(
        {
            **ENV,
            "FLASHBOOT_OVERDUE_FLOOR_MS": "20",
            "FLASHBOOT_NICE": "0",
            "FLASHBOOT_LINK_MBIT": "300",
            "FLASHBOOT_EGRESS_MBIT": "8",
        }
    )
    assert (told.overdue_floor_seconds, told.nice) == (0.02, 0)
    assert (told.link_bytes_per_second, told.egress_bytes_per_second) == (37_500_000, 1_000_000)


@pytest.mark.parametrize(
    ("name", "value"), [("FLASHBOOT_NICE", "20"), ("FLASHBOOT_OVERDUE_FLOOR_MS", "0"), ("FLASHBOOT_LINK_MBIT", "fast")]
)
def test_settings_out_of_range_are_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name):
        Settings.from_env({**ENV, name: value})
