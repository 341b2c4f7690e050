"""The agent is asked before torch is there: natively where all goes well, by a conversation in Python where not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from flashboot_agent.api import Request, attach, attach_or_seed, begin, seed
from flashboot_agent.core.errors import CommitRefused, FlashBootError, IdentityMismatch
from flashboot_agent.engine import begun as begun_module
from flashboot_agent.engine import keeper, views
from flashboot_agent.wire import attach as wire
from tests.engine import peer as peers
from tests.engine.programs import all_in_place, made, run, same

pytestmark = pytest.mark.usefixtures("brisk")


def test_what_was_begun_ends_as_if_it_were_asked_now(peer: peers.Peer, ask: Callable[..., Request]) -> None:
    given = made()
    first = attach_or_seed(begin(ask()), load=lambda: given)
    assert first.seeded
    second = attach(begin(ask()))
    assert not second.seeded
    assert same(second, given)
    with pytest.raises(CommitRefused, match="resident already"):
        seed(begin(ask()), given)
    begun = begin(ask(identity={"dtype": "float64"}))
    with pytest.raises(IdentityMismatch, match="dtype"):
        attach(begun)
    peer.wait_for(wire.Trouble, 2)


def test_the_agent_is_asked_and_the_arena_mapped_without_torch(peer: peers.Peer, ask: Callable[..., Request]) -> None:
    attach_or_seed(ask(), load=made)
    code = (
        "import sys\n"
        "from flashboot_agent.api import Request, attach, begin\n"
        "begun = begin(Request(model='m', revision='1', socket=sys.argv[1]))\n"
        "answer = begun.answer()\n"
        "assert answer.arena and answer.nbytes and answer.digest and not answer.must_seed\n"
        "assert 'torch' not in sys.modules\n"
        "print(float(attach(begun)['table'][0, 1]))\n"
    )
    done = run(code, peer.path)
    assert (done.returncode, done.stdout) == (0, "1.0\n"), done.stderr


def test_a_question_that_nobody_wants_answered_ends(peer: peers.Peer, ask: Callable[..., Request]) -> None:
    peer.hold = wire.Coming(allocated=False, bytes=0, watermark=0, note="on its way")
    begun = begin(ask())
    peer.wait_for(wire.Hello, 1)
    begun.close()
    with pytest.raises(FlashBootError, match="this conversation was closed"):
        begun.answer()


def test_plain_tensors_are_made_by_the_thread_also_after_a_wait(
    peer: peers.Peer, ask: Callable[..., Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = all_in_place()
    attach_or_seed(ask(), load=lambda: given)

    def other_way(*_: Any) -> None:
        raise AssertionError("the tensors were made after the import of torch")

    monkeypatch.setattr(views, "by_name", other_way)
    assert same(attach(ask()), given)
    peer.hold = wire.Coming(allocated=True, bytes=peer.nbytes, watermark=0, note="on its way")
    begun = begin(ask())
    peer.wait_for(wire.Hello, 3)
    peer.hold = None
    assert same(attach(begun), given)
    peer.wait_for(wire.Attached, 3)


def test_a_torch_without_the_functions_gets_the_same_tensors_afterwards(
    peer: peers.Peer, ask: Callable[..., Request], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    given = all_in_place()
    attach_or_seed(ask(), load=lambda: given)
    monkeypatch.setattr(begun_module, "torch_libraries", lambda: ("libc.so.6", "libc.so.6"))
    with caplog.at_level("WARNING", "flashboot"):
        assert same(attach(ask()), given)
    assert "tensors are made after the import of torch, not beside it: this torch has no" in caplog.text
    peer.wait_for(wire.Attached, 2)


def attached_hellos(peer: peers.Peer) -> int:
    return sum(isinstance(message, wire.Hello) and message.attached for message in peer.seen)


def test_a_new_agent_is_told_again_who_is_attached(
    peer: peers.Peer, ask: Callable[..., Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "RETRY_SECONDS", 0.02)
    attach_or_seed(ask(), load=all_in_place)
    attach(ask())
    peer.wait_for(wire.Attached, 2)
    peer.close()
    peer.open()
    peer.wait_for(wire.Attached, 4)
    assert attached_hellos(peer) == 2


def test_an_agent_that_went_before_the_weights_were_taken_is_told_when_it_is_back(
    peer: peers.Peer, ask: Callable[..., Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "RETRY_SECONDS", 0.02)
    given = all_in_place()
    attach_or_seed(ask(), load=lambda: given)
    peer.wait_for(wire.Attached, 1)
    begun = begin(ask())
    begun.answer()
    peer.close()
    weights = attach(begun)
    assert same(weights, given)
    peer.open()
    peer.wait_for(wire.Attached, 3)
    assert attached_hellos(peer) == 2, "of the one that seeded, too"


def test_the_agent_sees_at_once_that_nobody_uses_the_arena(peer: peers.Peer, ask: Callable[..., Request]) -> None:
    attach_or_seed(ask(), load=all_in_place).close()
    before = set(threading.enumerate())
    weights = attach(ask())
    peer.wait_for(wire.Attached)
    weights.close()
    weights.close()
    for thread in (thread for thread in set(threading.enumerate()) - before if thread.name == "flashboot-begun"):
        thread.join(20)
        assert not thread.is_alive()


def test_an_answer_is_not_waited_for_in_a_child(peer: peers.Peer, ask: Callable[..., Request]) -> None:
    attach_or_seed(ask(), load=made)
    code = (
        "import os, sys\n"
        "from flashboot_agent.api import Request, attach, begin\n"
        "begun = begin(Request(model='m', revision='1', socket=sys.argv[1]))\n"
        "if os.fork() == 0:\n"
        "    try:\n"
        "        attach(begun)\n"
        "    except Exception as error:\n"
        "        print(error, flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "weights = attach(begun)\n"
        "if os.fork() == 0:\n"
        "    weights.close()\n"
        "    print(float(weights['table'][0, 1]), flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    done = run(code, peer.path)
    first, second = done.stdout.splitlines()
    assert "call begin after it" in first, done.stderr
    assert second == "1.0"
