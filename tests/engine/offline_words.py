"""`flashboot delta trace` and `convert` on a command line, in a process that has nothing of an engine yet.

    python -m tests.engine.offline_words CHECKPOINT FOLDER

Makes the arena image of the checkpoint, as a seed would; says, as JSON, whether both words make the same of it.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path

from safetensors.torch import save_file

from flashboot_agent.delta.gather import gather, whole
from flashboot_agent.delta.permutation import PermutationMap
from flashboot_agent.engine import offline, seed, walk
from flashboot_agent.engine.plan import plan
from flashboot_agent.load.image import open_image
from flashboot_operator.cli.main import main
from tests.engine import updates
from tests.images import image_bytes


def arguments(checkpoint: Path) -> list[str]:
    extra = {"flashboot": {"model": "m", "revision": "1"}}
    return [
        "--",
        *("--model-path", str(checkpoint), "--load-format", "private"),
        *("--model-loader-extra-config", json.dumps(extra), "--device", "cpu"),
        *("--attention-backend", "torch_native", "--disable-cuda-graph"),
    ]


def made(checkpoint: Path, image: Path) -> updates.Values:
    """The image of the checkpoint's arena. Returns the checkpoint's values."""
    with ExitStack() as stack:
        given = offline.start(arguments(checkpoint)[1:], stack)
        feed = given.feed
        model, left = seed._load(feed._model_config, feed._device_config, feed._load_config)
        layout = plan(walk.tensors(model), given.identity, left.stamped, None, left.deleted).layout
        image.write_bytes(image_bytes(updates.image(layout, bytes(layout.arena_bytes), model), layout.to_bytes()))
    return updates.checkpoint(checkpoint)


def main_of(checkpoint: Path, folder: Path) -> dict[str, object]:
    image, mapped, new = folder / "base.image", folder / "map", folder / "new.image"
    old = made(checkpoint, image)
    values = updates.next_version(old)
    following = folder / "next"
    following.mkdir()
    for path in checkpoint.iterdir():
        if path.suffix != ".safetensors" and not path.name.endswith(".index.json"):
            (following / path.name).write_bytes(path.read_bytes())
    save_file(values, following / "model.safetensors")
    codes = [
        main(["delta", "trace", str(image), str(mapped), *arguments(checkpoint)]),
        main(["delta", "convert", str(image), str(new), "--version", "7", *arguments(following)]),
        main(["delta", "convert", str(image), str(new), *arguments(following)]),
    ]
    permutation = PermutationMap.from_bytes(mapped.read_bytes())
    with open_image(image) as before, open_image(new) as after:
        arena = bytearray(image.read_bytes()[before.data_offset :])
        base = bytes(arena)
        shards = {each.name: [whole(each, updates.as_bytes(values[each.name]))] for each in permutation.tensors}
        gather(permutation, shards, memoryview(arena))
        converted = new.read_bytes()[after.data_offset :]
        version = after.manifest.version
    return {"codes": codes, "same": converted == arena, "changed": converted != base, "version": version}


if __name__ == "__main__":
    print(json.dumps(main_of(Path(sys.argv[1]), Path(sys.argv[2]))))
