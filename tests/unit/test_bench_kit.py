"""The benchmarks' kit: ratios come from pairs, the first round is dropped, tables say what was measured."""

import json
import sys
from pathlib import Path

import pytest

from bench.kit import report
from bench.kit.paired import Pairs, Run, RunFailed, Sample, paired
from bench.kit.rows import Row, at_least, at_most, failed
from bench.kit.worker import Worker


def runs(*seconds: float) -> Run:
    """A contestant that takes these times, one after the other."""
    left = iter(seconds)
    return lambda: {"seconds": next(left)}


def test_contestants_run_in_turn_and_the_first_round_does_not_count() -> None:
    order: list[str] = []

    def contestant(name: str) -> Run:
        def run() -> Sample:
            order.append(name)
            return {"seconds": float(len(order))}

        return run

    pairs = paired({"a": contestant("a"), "b": contestant("b")}, 2)
    assert order == ["a", "b"] * 3
    assert [sample["seconds"] for sample in pairs.samples["a"]] == [3, 5]


def test_a_ratio_is_the_median_of_the_rounds_and_not_of_the_times() -> None:
    # Within each round b takes twice as long; round 2 was slow for both.
    pairs = paired({"a": runs(9, 1, 10, 2), "b": runs(9, 2, 20, 4)}, 3)
    row = pairs.ratio("a over b", "a", "b", at_least(2))
    assert (row.figure, row.spread, row.verdict) == (2.0, (2.0, 2.0), "reached")


def test_the_best_peer_is_the_fastest_by_median() -> None:
    pairs = paired({"ours": runs(0, 1, 1, 1), "slow": runs(0, 1, 9, 9), "fast": runs(0, 5, 5, 5)}, 3)
    assert pairs.best(["slow", "fast"]) == "fast"
    assert pairs.ratio("over the best", "ours", ["slow", "fast"]).figure == 5


def test_a_contestant_that_fails_is_named_and_the_others_go_on() -> None:
    def broken() -> Sample:
        raise RunFailed("no such library")

    pairs = paired({"ours": runs(1, 1, 1), "broken": broken, "peer": runs(3, 3, 3)}, 2)
    assert pairs.ratio("over the best", "ours", ["broken", "peer"]).figure == 3
    row = pairs.ratio("over broken", "ours", "broken", at_least(1))
    assert (row.figure, row.verdict) == (None, "unmeasured")
    assert "no such library" in row.note


def test_a_contestant_that_fails_late_leaves_no_half_pairs() -> None:
    def late() -> Sample:
        if next(left, None) is None:
            raise RunFailed("died")
        return {"seconds": 1.0}

    left = iter([1, 2])
    pairs = paired({"ours": runs(1, 1, 1), "late": late}, 2)
    with pytest.raises(RunFailed, match="died"):
        pairs.seconds("late")


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (Row("speed", 0.85, "x", at_least(0.85)), "reached"),
        (Row("speed", 0.84, "x", at_least(0.85)), "missed"),
        (Row("memory", 1.02, "x", at_most(1.02)), "reached"),
        (Row("memory", 1.03, "x", at_most(1.02)), "missed"),
        (Row("for orientation", 7.0, "s"), ""),
        (failed("speed", "x", at_least(1), "no compiler"), "unmeasured"),
    ],
)
def test_verdicts(row: Row, verdict: str) -> None:
    assert row.verdict == verdict


def test_a_table_has_the_goal_beside_the_figure() -> None:
    rows = [Row("speed | of light", 0.912, "x", at_least(0.85), "note", (0.9, 1.0)), failed("other", "x", None, "gone")]
    title, headings, first, second = report.text("load", rows).splitlines()
    assert title == "load"
    assert headings.split("  ")[0] == "what"
    cells = [cell.strip() for cell in first.split("  ") if cell]
    assert cells == ["speed | of light", "0.912 x", ">= 0.85", "reached", "0.9-1", "note"]
    assert first.index(">= 0.85") == headings.index("goal")
    assert second.endswith("failed: gone")
    table = report.markdown("load", {"commit": "abc"}, rows).splitlines()
    assert table[2] == "- commit: abc"
    assert table[-2] == "| speed / of light | 0.912 x | >= 0.85 | reached | 0.9-1 | note |"


def test_json_holds_rows_verdicts_and_raw_samples(tmp_path: Path) -> None:
    path = tmp_path / "bench" / "load.json"
    report.write_json(path, "load", {"commit": "abc"}, [Row("speed", 1.0, "x", at_least(2))], {"raw": Pairs().samples})
    document = json.loads(path.read_text())
    assert document["machine"] == {"commit": "abc"}
    assert (document["rows"][0]["goal"], document["rows"][0]["verdict"]) == (">= 2", "missed")
    assert [file.name for file in path.parent.iterdir()] == ["load.json"]


def worker(tmp_path: Path, code: str, seconds: float = 20.0) -> Worker:
    return Worker("w", [sys.executable, "-c", code], logs=tmp_path, seconds=seconds)


LOOP = "import sys\nprint('{\"ready\": true}', flush=True)\nfor line in sys.stdin:\n"


def test_a_worker_answers_line_by_line(tmp_path: Path) -> None:
    with worker(tmp_path, LOOP + "    print(line.strip(), flush=True)") as echo:
        assert echo.call("run", size=3) == {"op": "run", "size": 3}
        assert echo.run() == {"op": "run"}


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (LOOP + "    sys.exit('out of luck')", "out of luck"),
        (LOOP + '    print(\'{"error": "refused"}\', flush=True)', "refused"),
        (LOOP + "    print('what?', flush=True)", "what"),
    ],
)
def test_a_worker_that_fails_says_why(tmp_path: Path, code: str, why: str) -> None:
    with worker(tmp_path, code) as broken, pytest.raises(RunFailed, match=why):
        broken.run()


def test_a_worker_that_is_silent_is_killed_at_its_deadline(tmp_path: Path) -> None:
    with worker(tmp_path, LOOP + "    pass", seconds=0.1) as mute, pytest.raises(RunFailed, match=r"within 0 s"):
        mute.run()


def test_a_worker_that_can_not_be_started_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="can't be started"):
        Worker("w", [tmp_path / "missing"], logs=tmp_path)
