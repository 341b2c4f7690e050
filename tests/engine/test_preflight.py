"""Waiting for a checkpoint to be put right; the settings; what counts as ours on a command line."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flashboot_agent.core.errors import (
    BadRequest,
    CheckpointMissing,
    CheckpointTruncated,
    DeadlineExceeded,
    UnsupportedModel,
)
from flashboot_agent.engine import preflight
from flashboot_agent.engine.deadlines import Deadlines
from flashboot_agent.engine.settings import EngineSettings, settings_of
from flashboot_agent.wire import attach as wire
from flashboot_agent.wire.problem import Problem
from tests.engine import peer as peers

OURS = json.dumps({"flashboot": {"model": "m", "revision": "r", "onMismatch": "Fail", "cloneTimeoutSeconds": 60}})


class Board:
    def __init__(self, away: int = 0) -> None:
        self.told: list[str] = []
        self.away = away

    def report(self, problem: Problem) -> bool:
        return self._tell(f"{problem.reason}: {problem.message}")

    def clear(self) -> bool:
        return self._tell("clear")

    def _tell(self, text: str) -> bool:
        if self.away:
            self.away -= 1
            return False
        self.told.append(text)
        return True


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def clock(self) -> float:
        return self.now


def wait(outcomes: list[Exception | None], board: Board, seconds: float = 600) -> Time:
    time = Time()
    rest: Iterator[Exception | None] = iter(outcomes)

    def check() -> None:
        outcome = next(rest)
        if outcome is not None:
            raise outcome

    preflight.wait_until_sound(check, board, seconds, "/models/m", pause=time.pause, clock=time.clock)
    return time


def test_a_sound_checkpoint_is_not_mentioned() -> None:
    board = Board()
    assert wait([None], board).now == 0
    assert board.told == []


def test_each_new_problem_is_told_once_and_cleared_when_right() -> None:
    board = Board()
    missing, short = CheckpointMissing("/models/m is not there"), CheckpointTruncated("model-1 ends early")
    time = wait([missing, missing, missing, short, None], board)
    assert board.told == [
        "CheckpointMissing: /models/m is not there",
        "CheckpointTruncated: model-1 ends early",
        "clear",
    ]
    assert time.now == 4 * preflight.CHECK_SECONDS


def test_what_could_not_be_told_is_told_later() -> None:
    board = Board(away=2)
    wait([CheckpointMissing("x")] * 3 + [None], board)
    assert board.told == ["CheckpointMissing: x", "clear"]


def test_the_deadline_names_the_folder_and_the_last_problem() -> None:
    with pytest.raises(DeadlineExceeded, match=r"/models/m was not put right within 5 s .*: gone"):
        wait([CheckpointMissing("gone")] * 10, Board(), seconds=5)


def test_what_waiting_can_not_mend_is_told_and_raised_at_once() -> None:
    board = Board()
    with pytest.raises(UnsupportedModel):
        wait([UnsupportedModel("never")], board)
    assert board.told == ["UnsupportedModel: never"]


def test_a_command_line_is_ours_by_its_extra_config() -> None:
    both = preflight.asked(["--model-path", "/m", "--load-format", "private", "--model-loader-extra-config", OURS])
    assert both is not None
    assert (both.model_path, both.load_format, both.settings.model) == ("/m", "private", "m")
    joined = preflight.asked([f"--model-loader-extra-config={OURS}", "--load-format=private", "--model=/m"])
    assert joined == both
    served = preflight.asked(["serve", "/m", "--load-format", "private", "--model-loader-extra-config", OURS])
    assert served == both
    assert preflight.asked(["--model-path", "/m"]) is None
    assert preflight.asked(["--model-path", "/m", "--model-loader-extra-config", '{"num_threads": 4}']) is None
    assert preflight.asked(["--load-format"]) is None


@pytest.mark.parametrize(
    ("flashboot", "says"),
    [
        ({"model": "m"}, r"flashboot\.revision: Field required"),
        ({"model": "m", "revision": "r", "onMismatch": "Perhaps"}, r"flashboot\.onMismatch"),
        ({"model": "m", "revision": "r", "cloneTimeoutSeconds": 0}, r"flashboot\.cloneTimeoutSeconds"),
        ({"model": "m", "revision": "r", "more": 1}, r"flashboot\.more"),
        ({"model": "m", "revision": "r", "socket": "/" + "x" * 120}, r"flashboot\.socket"),
        ("yes", r"flashboot: "),
    ],
)
def test_wrong_settings_name_the_field(flashboot: object, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        settings_of({"flashboot": flashboot})


def test_settings_have_defaults_and_broken_json_that_names_us_is_told() -> None:
    assert settings_of({"flashboot": {"model": "m", "revision": "r"}}) == EngineSettings(model="m", revision="r")
    assert settings_of('{"other": ') is None
    with pytest.raises(BadRequest, match="no JSON"):
        settings_of('{"flashboot": ')


def test_deadlines_come_from_the_environment() -> None:
    assert vars(Deadlines.of({})) == vars(Deadlines())
    assert Deadlines.of({"FLASHBOOT_PREFLIGHT_SECONDS": "7.5"}).preflight == 7.5
    for wrong in ("soon", "-1", "0", "inf", "nan"):
        with pytest.raises(BadRequest, match="FLASHBOOT_ARENA_SECONDS must be a positive number"):
            Deadlines.of({"FLASHBOOT_ARENA_SECONDS": wrong})


def test_before_start_waits_for_the_folder_and_tells_the_agent(
    socket_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = peers.Peer(socket_path)
    folder = tmp_path / "model"
    arguments = ["--model-path", str(folder), "--load-format", "private", "--model-loader-extra-config"]
    arguments.append(json.dumps({"flashboot": {"model": "m", "revision": "r", "socket": str(socket_path)}}))
    steps = iter(["", "{", '{"architectures": ["LlamaForCausalLM"]}'])

    def put_right(seconds: float) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(next(steps))

    monkeypatch.setattr(time, "sleep", put_right)
    preflight.before_start(arguments)
    peer.wait_for(wire.Clear)
    reasons = [message.problem.reason for message in peer.seen if isinstance(message, wire.Trouble)]
    assert reasons[0] == "CheckpointMissing"
    assert "CheckpointMalformed" in reasons
    assert isinstance(peer.seen[-1], wire.Clear)
    peer.close()


def test_before_start_leaves_names_on_a_hub_and_other_engines_alone() -> None:
    preflight.before_start(["--model-path", "/nowhere"])
    preflight.before_start(
        ["--model-path", "org/name", "--load-format", "private", "--model-loader-extra-config", OURS]
    )
