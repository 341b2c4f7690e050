"""Weights for any PyTorch program from the node's agent: `attach` to what is there, `seed` what is not, or either.

    from flashboot_agent.api import Request, attach_or_seed, begin

    begun = begin(Request(model="minilm", revision="0.1.0"))  # the agent is asked while torch is imported
    import torch
    ...
    weights = attach_or_seed(begun, load=read_my_checkpoint)
    model.load_state_dict(weights, assign=True)

Needs torch, but not before there are weights, and knows no engine. Holds always: every wait has a deadline; the weights
are the sealed arena's, whoever loaded them; they are never loaded in another way than by the caller's own `load`, and
only when the agent chose this process. docs/python-api.md tells the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

# Only what an attach without trouble needs, which is to be imported in less time than the tensors take; the rest is
# imported where it is used.
from flashboot_agent.engine.begun import Answer, Begun
from flashboot_agent.engine.request import Request
from flashboot_agent.wire.place import Place

if TYPE_CHECKING:
    from flashboot_agent.engine.client import AgentClient

__all__ = ["Begun", "Place", "Request", "Weights", "attach", "attach_or_seed", "begin", "seed"]

Load = Callable[[], Mapping[str, Any]]


class Weights(dict[str, Any]):
    """Name → tensor over the sealed arena, on the host. Read-only: a write into one ends the process by a signal.

    While it is open, the agent counts this process among those that use the arena. Tensors stay valid after `close`,
    until the last of them is gone.
    """

    def __init__(self, answer: Answer, begun: Begun, *, seeded: bool) -> None:
        super().__init__()
        self.arena = answer.arena
        self.nbytes = answer.nbytes
        self.digest = answer.digest
        self.seeded = seeded
        """This process loaded them, rather than attached to what another did."""
        self._begun = begun

    def close(self) -> None:
        """End the conversation with the agent: this process no longer counts as a user of the arena. Idempotent."""
        self._begun.close()


def begin(request: Request) -> Begun:
    """Ask the agent in a thread, and return at once: what needs no torch is done while the caller imports it.

    `attach`, `seed` and `attach_or_seed` take what this returns in place of the request, once; `close` it where none of
    them is called. What goes wrong is raised there."""
    return Begun(request)


def attach(request: Request | Begun) -> Weights:
    """Wait for the weights and view them. Nothing is loaded, nothing is copied.

    Raises:
        NotReady: nobody has them, and the agent chose this process to load them.
        IdentityMismatch: what is there was made from other facts; names the field and both values.
        DeadlineExceeded, CloneFailed: they did not come in time; says how far they came, and on whom it waited.
        FlashBootError: what else the agent refused with.
    """
    with _asking(request) as (begun, answer):
        if answer.must_seed:
            from flashboot_agent.core.errors import NotReady

            raise NotReady(
                f"{_who(begun)}: nobody holds {answer.arena}, and the agent chose this process to load it; use "
                "attach_or_seed here, or seed in another pod first"
            )
        return _attached(begun, answer)


def seed(request: Request | Begun, tensors: Mapping[str, Any] | Load) -> Weights:
    """Wait to be chosen, put the tensors into an arena, and view them there.

    `tensors`: name → tensor in host memory, or a function that makes that once this process is chosen. What a function
    made, and does not keep, is freed storage by storage as it is packed.

    Raises:
        CommitRefused: the weights are resident already (attach to them), or the arena can't be sealed.
        SeedFailed: the function raised, or it made no dictionary of tensors.
        UnsupportedModel: a tensor is not dense host memory; names it.
        InsufficientMemory: the node's budget for arenas is used up.
        FlashBootError: as `attach`.
    """
    with _asking(request) as (begun, answer):
        if not answer.must_seed:
            from flashboot_agent.core.errors import CommitRefused

            raise CommitRefused(f"{_who(begun)}: {answer.arena} is resident already; attach to it")
        return _seeded(begun, tensors if callable(tensors) else lambda: tensors)


def attach_or_seed(request: Request | Begun, load: Load) -> Weights:
    """Do what the agent says: attach, or call `load` and seed what it returns. Raises as `attach` and `seed` do."""
    with _asking(request) as (begun, answer):
        return _seeded(begun, load) if answer.must_seed else _attached(begun, answer)


@contextmanager
def _asking(request: Request | Begun) -> Iterator[tuple[Begun, Answer]]:
    """The agent's decision. An error inside is told to the agent, which shows it in the pod's status."""
    begun = begin(request) if isinstance(request, Request) else request
    try:
        yield begun, begun.answer()
    except BaseException as error:  # whatever it was: nobody else can end the conversation
        begun.failed(error)
        raise


def _attached(begun: Begun, answer: Answer) -> Weights:
    weights = Weights(answer, begun, seeded=False)
    begun.fill(weights)
    return _told(begun, weights)


def _seeded(begun: Begun, load: Load) -> Weights:
    import os

    from flashboot_agent.core.errors import CommitRefused
    from flashboot_agent.engine.mapping import as_tensor
    from flashboot_agent.engine.offer import opened
    from flashboot_agent.engine.seed import fill
    from flashboot_agent.engine.tensors import plan_tensors
    from flashboot_agent.engine.views import by_name

    client = begun.client()
    planned = plan_tensors(_loaded(client, load), client.identity)
    document = planned.layout.to_bytes()
    sealed = fill(planned, document, client)
    if sealed.layout != document:
        os.close(sealed.descriptor)
        raise CommitRefused(
            f"{client.who}: {sealed.arena} was sealed by another process with other names or shapes than this one "
            "loaded: put what differs into the identity"
        )
    weights = Weights(Answer(sealed.arena, sealed.nbytes, sealed.digest), begun, seeded=True)
    layout, mapping = opened(sealed, client.identity)
    by_name(layout, as_tensor(mapping), weights)
    return _told(begun, weights)


def _loaded(client: AgentClient, load: Load) -> Mapping[str, Any]:
    from flashboot_agent.core.errors import FlashBootError, SeedFailed

    try:
        return load()
    except FlashBootError:
        raise
    except Exception as error:  # a program's own function raises anything; it is reported with its reason and raised on
        raise SeedFailed(f"{client.who}: the weights could not be loaded: {type(error).__name__}: {error}") from error


def _told(begun: Begun, weights: Weights) -> Weights:
    begun.attached()
    if logging.getLogger("flashboot").isEnabledFor(logging.INFO):
        from flashboot_agent.engine.log import log

        log.info("%s: %s %s", _who(begun), "seeded" if weights.seeded else "attached to", weights.arena)
    return weights


def _who(begun: Begun) -> str:
    from flashboot_agent.engine.log import speaker

    return speaker(begun.request.place, begun.request.socket)
