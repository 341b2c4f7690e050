"""The public Python API against real sockets and sealed memory: bytes, names, views; who loads, who attaches."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from flashboot_agent.api import Place, Request, Weights, attach, attach_or_seed, seed
from flashboot_agent.core.errors import (
    BadRequest,
    CommitRefused,
    DeadlineExceeded,
    IdentityMismatch,
    NotReady,
    SeedFailed,
    UnsupportedModel,
)
from flashboot_agent.engine import seed as seeds
from flashboot_agent.engine.tensors import plan_tensors
from flashboot_agent.wire import attach as wire
from tests.engine import peer as peers
from tests.engine.programs import made, never, run, same

pytestmark = pytest.mark.usefixtures("brisk")


def test_what_one_process_seeds_the_next_attaches_to(peer: peers.Peer, ask: Callable[..., Request]) -> None:
    given = made()
    first = attach_or_seed(ask(), load=lambda: given)
    second = attach_or_seed(ask(), load=never)
    third = attach(ask())
    assert (first.seeded, second.seeded, third.seeded) == (True, False, False)
    for got in (first, second, third):
        assert same(got, given)
        assert got.arena == peers.ARENA
        assert got.nbytes == peer.nbytes
        assert not any(tensor.requires_grad for tensor in got.values())
    peer.wait_for(wire.Attached, 3)


def test_views_and_ties_share_bytes_and_all_lie_in_one_mapping(peer: peers.Peer, ask: Callable[..., Request]) -> None:
    got = attach_or_seed(ask(), load=made)
    assert got["tied"] is got["table"]
    assert got["layer.0.weight"].data_ptr() == got["table"].data_ptr()
    inside = {tensor.untyped_storage().data_ptr() for tensor in got.values() if tensor.numel()}
    assert len(inside) == 1


def test_the_plan_does_not_follow_the_order_of_the_dictionary(peer: peers.Peer, ask: Callable[..., Request]) -> None:
    attach_or_seed(ask(), load=made).close()
    one = peer.layout
    peer.forget()
    attach_or_seed(ask(), load=lambda: dict(reversed(made().items()))).close()
    assert peer.layout == one


def test_a_program_with_nothing_but_torch_reads_and_is_ended_by_a_write(
    peer: peers.Peer, ask: Callable[..., Request]
) -> None:
    attach_or_seed(ask(), load=made)
    code = (
        "import sys\n"
        "for name in ('sglang', 'transformers', 'prometheus_client', 'aiohttp', 'grpc'): sys.modules[name] = None\n"
        "from flashboot_agent.api import Request, attach\n"
        "weights = attach(Request(model='m', revision='1', socket=sys.argv[1]))\n"
        "print(sorted(weights), float(weights['table'][0, 1]), flush=True)\n"
        "weights['table'].zero_()"
    )
    done = run(code, peer.path)
    assert done.stdout == f"{sorted(made())} 1.0\n", done.stderr
    assert done.returncode < 0, "a signal"


def test_tensors_stay_valid_when_the_dictionary_is_closed_and_gone(
    peer: peers.Peer, ask: Callable[..., Request]
) -> None:
    weights = attach_or_seed(ask(), load=made)
    table = weights["table"]
    weights.close()
    weights.close()
    del weights
    gc.collect()
    assert torch.equal(table, made()["table"])


# Who does what ---------------------------------------------------------------------------------------------------


def test_attach_alone_says_what_to_do_when_it_is_chosen_to_load(peer: peers.Peer, ask: Callable[..., Request]) -> None:
    with pytest.raises(NotReady, match=r"nobody holds arena-0+, and the agent chose this process.*attach_or_seed"):
        attach(ask())
    peer.wait_for(wire.Trouble)
    assert peer.count(wire.Allocate) == 0


def test_seed_alone_takes_tensors_and_refuses_when_they_are_there(
    peer: peers.Peer, ask: Callable[..., Request]
) -> None:
    given = made()
    assert same(seed(ask(), given), given)
    with pytest.raises(CommitRefused, match="is resident already; attach to it"):
        seed(ask(), never)


def test_a_load_that_raises_is_told_with_its_reason(peer: peers.Peer, ask: Callable[..., Request]) -> None:
    def broken() -> dict[str, Any]:
        raise RuntimeError("no such shard")

    with pytest.raises(SeedFailed, match="could not be loaded: RuntimeError: no such shard"):
        attach_or_seed(ask(), broken)
    peer.wait_for(wire.Trouble)
    assert peer.count(wire.Allocate) == 0


@pytest.mark.parametrize(
    ("tensors", "error", "says"),
    [
        ({}, SeedFailed, "at least one tensor"),
        ([1], SeedFailed, "must be a dictionary"),
        ({"a": 1}, SeedFailed, "'a': int"),
        ({"": torch.ones(1)}, SeedFailed, "'': Tensor"),
        ({3: torch.ones(1)}, SeedFailed, "3: Tensor"),
        ({"a.b": torch.ones(1, device="meta")}, UnsupportedModel, r"a\.b .*meta device"),
        ({"a": torch.eye(2).to_sparse()}, UnsupportedModel, "no dense tensor"),
    ],
)
def test_what_can_not_be_packed_is_refused_before_memory_is_asked_for(
    peer: peers.Peer, ask: Callable[..., Request], tensors: Any, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        seed(ask(), tensors)
    peer.wait_for(wire.Trouble)
    assert peer.count(wire.Allocate) == 0


def test_a_lost_commit_is_repeated(peer: peers.Peer, ask: Callable[..., Request]) -> None:
    peer.commits_to_lose = 2
    assert same(attach_or_seed(ask(), load=made), made())
    assert peer.count(wire.Commit) == 3


def test_a_seed_that_lost_its_agent_while_it_loaded_asks_again(peer: peers.Peer, ask: Callable[..., Request]) -> None:
    """It told of a trouble on a new connection, on which nobody has chosen it; meanwhile another one seeded."""
    late = ask().client()
    late.wait()
    assert late.chosen
    peer.drop_all()
    attach_or_seed(ask(), load=made)
    while not late.clear():
        assert not late.chosen
    planned = plan_tensors(made(), late.identity)
    sealed = seeds.fill(planned, planned.layout.to_bytes(), late)
    os.close(sealed.descriptor)
    assert sealed.layout == peer.layout
    assert peer.count(wire.Allocate) == 1


# What is asked for -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        {"revision": "2"},
        {"model": "n"},
        {"identity": {"dtype": "bfloat16"}},
        {"identity": {}},
    ],
)
def test_any_other_fact_is_refused_by_field_and_values(
    peer: peers.Peer, ask: Callable[..., Request], other: dict[str, Any]
) -> None:
    facts = {"identity": {"dtype": "float32"}}
    attach_or_seed(ask(**facts), load=made)
    with pytest.raises(IdentityMismatch, match=next(iter({"identity": "dtype"}.get(key, key) for key in other))):
        attach(ask(**{**facts, **other}))
    assert attach(ask(**facts))


def test_another_rank_asks_for_another_arena(peer: peers.Peer, ask: Callable[..., Request]) -> None:
    first, second = (attach_or_seed(ask(place=Place(tp=tp)), load=lambda: {"a": torch.ones(1)}) for tp in (0, 1))
    assert first.seeded
    assert second.seeded
    assert first.arena != second.arena


def test_what_flashboot_adds_to_the_identity(ask: Callable[..., Request]) -> None:
    fields = ask(identity={"dtype": "float32"}).full_identity()
    assert fields == {
        **{"schema": "tensors-1", "model": "m", "revision": "1", "place": str(Place()), "dtype": "float32"},
        **{"torch": torch.__version__, "byteorder": sys.byteorder},
    }


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"model": ""}, "^model: "),
        ({"revision": ""}, "^revision: "),
        ({"socket": "/" + "x" * 120}, "^socket: "),
        ({"connect_seconds": 0}, "^connect_seconds must be"),
        ({"arena_seconds": float("nan")}, "^arena_seconds must be"),
        ({"stall_seconds": -1}, "^stall_seconds must be"),
        ({"place": Place(tp=-1)}, "^place must be"),
        ({"place": Place(pp=4096)}, "^place must be"),
        ({"connect_seconds": "1"}, "^connect_seconds must be"),
        ({"place": "tp0"}, "^place must be"),
        ({"identity": {"notes": "\ud800"}}, "UTF-8"),
        ({"identity": {"torch": "3"}}, "'torch' is filled in by FlashBoot"),
        ({"identity": {"dtype": torch.float32}}, "names and values are strings"),
        ({"identity": {"notes": "x" * 70000}}, "at most 65536 are carried"),
    ],
)
def test_a_request_that_makes_no_sense_names_the_field(
    ask: Callable[..., Request], facts: dict[str, Any], says: str
) -> None:
    with pytest.raises(BadRequest, match=says):
        ask(**facts)


def test_an_agent_that_is_away_is_waited_for_until_the_deadline(ask: Callable[..., Request]) -> None:
    with pytest.raises(DeadlineExceeded, match="no agent within 0 s"):
        attach(ask(connect_seconds=0.1))


def test_the_operators_command_line_is_the_request(peer: peers.Peer) -> None:
    extra = {"flashboot": {"model": "org/m", "revision": "r", "socket": str(peer.path), "cloneTimeoutSeconds": 7}}
    arguments = ["--port", "1", "--load-format", "private", "--model-loader-extra-config", json.dumps(extra)]
    request = Request.of(arguments, identity={"a": "b"})
    assert (request.model, request.revision, request.stall_seconds) == ("org/m", "r", 7)
    assert isinstance(attach_or_seed(request, load=made), Weights)
    with pytest.raises(BadRequest, match="the command line has no --model-loader-extra-config"):
        Request.of(["--port", "1"])
