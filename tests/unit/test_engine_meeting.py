"""Where engines of several pods meet: a name is waited for, with a deadline that says what to look at."""

from __future__ import annotations

import socket

import pytest

from flashboot_agent.core.errors import DeadlineExceeded
from flashboot_agent.engine.meeting import meeting_host, wait_for_name


@pytest.mark.parametrize(
    ("arguments", "host"),
    [
        ([], None),
        (["--tp", "2"], None),
        (["--dist-init-addr", "m-0-0.m-0.ns.svc:20000"], "m-0-0.m-0.ns.svc"),
        (["--dist-init-addr=10.0.0.7:20000"], "10.0.0.7"),
        (["--dist-init-addr", "[fd00::7]:20000"], "fd00::7"),
        (["--dist-init-addr"], None),
    ],
)
def test_the_host_of_a_command_line(arguments: list[str], host: str | None) -> None:
    assert meeting_host(arguments) == host


@pytest.mark.parametrize("arguments", [[], ["--dist-init-addr", "10.0.0.7:1"], ["--dist-init-addr", "[fd00::7]:1"]])
def test_an_address_is_not_asked_for(arguments: list[str]) -> None:
    wait_for_name(arguments, resolve=lambda *_: pytest.fail("asked"))


def test_a_name_is_waited_for_and_a_missing_one_says_what_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAME", "m-0-1")
    monkeypatch.setenv("FLASHBOOT_CONNECT_SECONDS", "60")
    now, answers = [0.0], [socket.gaierror(-2, "Name or service not known")] * 3

    def resolve(host: str, _: None) -> None:
        if answers:
            raise answers.pop()

    def pause(seconds: float) -> None:
        now[0] += seconds

    line = ["--dist-init-addr", "m-0-0.m-0.ns.svc:20000"]
    wait_for_name(line, resolve=resolve, pause=pause, clock=lambda: now[0])
    assert now[0] == 1.5
    answers += [socket.gaierror(-2, "Name or service not known")] * 1000
    with pytest.raises(DeadlineExceeded, match=r"pod m-0-1: m-0-0\.m-0\.ns\.svc has no address after 60 s"):
        wait_for_name(line, resolve=resolve, pause=pause, clock=lambda: now[0])
    assert now[0] < 63
