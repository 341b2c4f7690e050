"""`flashboot plan`: what it draws, what it says to bad input."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flashboot_operator.cli.drawing import WIDTH, draw
from flashboot_operator.cli.main import main
from flashboot_operator.cli.units import parse_rate, parse_size, parse_time, show_rate, show_size, show_time

Capture = pytest.CaptureFixture[str]


def plan(capsys: Capture, *arguments: str) -> dict[str, Any]:
    assert main(["plan", *arguments, "-o", "json"]) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return said


def test_a_chain_is_drawn_with_its_estimate(capsys: Capture) -> None:
    assert main(["plan", "--targets", "3"]) == 0
    said = capsys.readouterr().out
    assert "8 GB over 700 GB/s to 3 targets from 1 source: 1 lane, requests of 8 MiB" in said
    assert "s0 → t0 (11.44 ms) → t1 (11.46 ms) → t2 (11.48 ms)" in said
    assert "estimate   11.48 ms, 1.005 S/B" in said


def test_estimate_and_simulation_agree(capsys: Capture) -> None:
    for more in ([], ["--sources", "4", "--source-egress-percent", "25"], ["--domains", "2", "--crossing", "350GB/s"]):
        said = plan(capsys, "--targets", "7", *more)
        assert said["simulatedSeconds"] == pytest.approx(said["estimateSeconds"], rel=0.05), more


def test_capped_sources_get_a_lane_each(capsys: Capture) -> None:
    said = plan(capsys, "--targets", "3", "--sources", "4", "--source-egress-percent", "25")
    assert [lane["parents"]["t0"] for lane in said["lanes"]] == ["s0", "s1", "s2", "s3"]
    assert said["sentBytes"]["s0"] == pytest.approx(2e9)


def test_a_death_and_a_slow_node(capsys: Capture) -> None:
    said = plan(capsys, "--targets", "6", "--kill", "t2@3ms", "--slow", "t4=25")
    assert said["lanes"][0]["parents"] == {"t0": "s0", "t1": "t0", "t3": "t1", "t5": "t3", "t4": "t5"}
    assert "t2" not in said["doneSeconds"]
    assert max(at for node, at in said["doneSeconds"].items() if node != "t4") < 1.1 * said["idealSeconds"]


def test_racks_get_each_byte_once(capsys: Capture) -> None:
    said = plan(capsys, "--targets", "7", "--domains", "2")
    assert said["crossedBytes"] == pytest.approx(said["arenaBytes"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--targets", "0"], "--targets 0: must be 1 to 512"),
        (["--targets", "3", "--lanes", "17"], "--lanes 17: must be 1 to 16"),
        (["--targets", "3", "--bytes", "big"], "'big' is not a size; write it like 8GB or 64MiB"),
        (["--targets", "3", "--bandwidth", "300Mbit"], "is not a bandwidth; write it like 700GB/s or 300Mbit/s"),
        (["--targets", "3", "--overhead", "10"], "'10' is not a time; write it like 10us, 5ms or 2s"),
        (["--targets", "3", "--kill", "t9@1s"], "--kill t9: targets are named t0 to t2"),
        (["--targets", "3", "--kill", "t1"], "--kill t1: write it like t3@5ms"),
        (["--targets", "1", "--kill", "t0@1ms"], "--kill: no target is left"),
        (["--targets", "3", "--slow", "t1=fast"], "must be a percentage above 0 and below 100"),
        (["--targets", "500", "--bytes", "1TB", "--bandwidth", "1Mbit/s", "--lanes", "16"], "too many to simulate"),
    ],
)
def test_bad_input_is_told(capsys: Capture, arguments: list[str], message: str) -> None:
    assert main(["plan", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_lines_are_bounded_and_branches_name_who_feeds_them() -> None:
    long = {f"t{i:02}": f"t{i - 1:02}" if i else "s0" for i in range(40)} | {"u": "t05"}
    lines = draw(long, ["s0"], {f"t{i:02}": "(11.44 ms)" for i in range(40)})
    assert all(len(line) <= WIDTH for line in lines)
    assert lines[-1] == "└─ t05 → u"


def test_units() -> None:
    assert (parse_size("8GB"), parse_size("64 MiB"), parse_size("1500")) == (8 * 10**9, 64 << 20, 1500)
    assert (parse_rate("300Mbit/s"), parse_rate("700GB/s")) == (37.5e6, 700e9)
    assert [parse_time(text) for text in ("10us", "2.5ms", "0s")] == pytest.approx([1e-5, 2.5e-3, 0.0])
    assert (show_size(8e9), show_size(8 << 20), show_rate(700e9)) == ("8 GB", "8 MiB", "700 GB/s")
    assert (show_time(0.01143), show_time(2), show_time(5e-5)) == ("11.43 ms", "2 s", "50 µs")
