"""Ask engines for greedy tokens: the only proof of equal weights that a user would accept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kit.apiserver import ApiServer
from kit.errors import KitError

ENGINE_PORT = 30000
PROMPTS: Sequence[Sequence[int]] = (
    (1, 2, 3, 4, 9),
    (101, 57, 300, 12, 8, 77, 5, 260, 33, 199),
    tuple(range(10, 74)),
    (7,),
    tuple((i * 37 + 11) % 400 for i in range(40)),
)
"""Token ids, so that no tokenizer stands between the question and the weights; short, middling and longer ones."""

TOKENS = 24


@dataclass(frozen=True)
class Answer:
    """What one engine said to all prompts."""

    who: str
    tokens: tuple[tuple[int, ...], ...]


def ask(api: ApiServer, namespace: str, pod: str, *, seconds: float = 120) -> Answer:
    """Greedy continuations of all prompts. Raises KitError when the engine answers anything but TOKENS tokens."""
    said = []
    for prompt in PROMPTS:
        body = {
            "input_ids": list(prompt),
            "sampling_params": {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True},
        }
        answer = api.pod(namespace, pod, ENGINE_PORT, "/generate", body=body, seconds=seconds)
        tokens = tuple(int(token) for token in answer.get("output_ids", ()))
        if len(tokens) != TOKENS:
            raise KitError(f"{namespace}/{pod} gave {len(tokens)} tokens instead of {TOKENS}: {str(answer)[:300]}")
        said.append(tokens)
    return Answer(f"{namespace}/{pod}", tuple(said))


def first_difference(one: Answer, other: Answer) -> str | None:
    """Where two answers differ first, for people; None when they are equal."""
    for number, (mine, theirs) in enumerate(zip(one.tokens, other.tokens, strict=True)):
        for position, (left, right) in enumerate(zip(mine, theirs, strict=True)):
            if left != right:
                return f"prompt {number}, token {position}: {one.who} says {left}, {other.who} says {right}"
    return None
