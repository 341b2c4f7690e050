"""A real, small tokenizer: byte-level BPE learned from a fixed text, so that every prompt can be encoded.

Byte-level means that no text is out of vocabulary. The text is generated from word lists in a fixed order, hence the
same merges, the same files and the same ids everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Final

BOS: Final = "<|begin|>"
EOS: Final = "<|end|>"

_SUBJECTS = (
    "the operator,the agent,a replica,the source,every node,the scheduler,our engine,a child,the parent,the holder,"
    "an arena,the cluster,a reader,the morning train,the old captain,a careful engineer,the library,the river,"
    "a young painter,the whole village,my neighbour,the orchestra,a distant star,the gardener"
)
_VERBS = (
    "copies,waits for,forgets,verifies,carries,remembers,describes,feeds,replaces,watches,measures,follows,answers,"
    "starts,holds,looks at,writes about,dreams of,returns to,builds,paints,crosses,sings to,reads"
)
_OBJECTS = (
    "its weights,another pod,the next chunk,the digest,a long story,the bridge,seven stones,the evening news,a map of "
    "the coast,the first layer,one more token,the quiet harbour,an unread letter,the mountain,the experts,a warm meal"
)
_ENDS = (
    "in a second,without a word,before the rain,at noon,as promised,because it must,over the network,near the sea,"
    "once again,after the failure,with great care,for no reason"
)


def corpus() -> Iterator[str]:
    """Some thousand sentences, always the same."""
    columns = [part.split(",") for part in (_SUBJECTS, _VERBS, _OBJECTS, _ENDS)]
    for number, words in enumerate(product(*columns)):
        if number % 7 == 0:
            sentence = " ".join(words)
            yield f"{sentence[0].upper()}{sentence[1:]}, {number} times: {sentence.title()}!"


def write_tokenizer(folder: Path, vocabulary: int) -> None:
    """tokenizer.json and tokenizer_config.json with at most `vocabulary` ids; ids 0 and 1 begin and end a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[BOS, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True) + "\n", encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
        "chat_template": "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
