"""A publisher has its folder alone, and in it what is its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flashboot_agent.core.errors import (
    CheckpointMalformed,
)
from flashboot_agent.sync.publisher import Publisher
from tests.syncs import (
    PLACES,
    names,
    publish,
    receiver,
    versions,
)


def test_files_that_are_not_its_own_stay(tmp_path: Path) -> None:
    others = ["0-1.delta.sha256", "step.delta", "step.delta.writing"]
    for name in [*others, "0-1.delta"]:
        (tmp_path / name).touch()
    steps = versions(3)
    with Publisher(tmp_path, PLACES):
        pass
    assert names(tmp_path) == sorted([*others, "0-1.delta"])  # no chain yet
    with Publisher(tmp_path, PLACES) as publisher:
        publish(publisher, 0, steps[0])
        (tmp_path / "7-8.delta").touch()
        publish(publisher, 1, steps[1])
    assert names(tmp_path) == sorted([*others, "0-1.delta", "chain"])


def test_a_closed_publisher_is_closed_for_processes_that_it_forked_too(tmp_path: Path) -> None:
    end, go = os.pipe()
    with Publisher(tmp_path, PLACES):
        child = os.fork()
        if child == 0:
            os.close(go)
            os.read(end, 1)  # until the test has come to its end
            os._exit(0)
    Publisher(tmp_path, PLACES).close()
    os.close(go)
    os.close(end)
    os.waitpid(child, 0)


def test_a_chain_that_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "chain")
    with pytest.raises(CheckpointMalformed, match="chain is no regular file"):
        receiver(tmp_path, tmp_path / "spool").chain()
