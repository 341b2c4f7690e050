"""The engine's image: SGLang, torch and FlashBoot fit together, and SGLang takes our hooks."""

from __future__ import annotations

import os
from importlib.metadata import entry_points, version
from typing import Final

from flashboot_agent.engine import plugin, seams
from flashboot_agent.engine.doctor.findings import Check, Odd
from flashboot_agent.engine.support import SGLANG_VERSION, require_version

GROUP: Final = "sglang.srt.plugins"
REGISTER: Final = "flashboot_agent.engine.plugin:register"


def sglang() -> str:
    found = version("sglang")
    require_version(found)
    return found


def torch() -> str:
    """Pack a dictionary of tensors into sealed memory and view it there: all that attaching asks of torch."""
    import torch

    from flashboot_agent.engine.mapping import as_tensor, map_arena
    from flashboot_agent.engine.pack import Packing
    from flashboot_agent.engine.tensors import plan_tensors
    from flashboot_agent.engine.views import by_name
    from flashboot_agent.memory import memfd

    given = {"a.weight": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).t(), "b": torch.tensor([1, 2])}
    planned = plan_tensors(given, {})
    nbytes = planned.layout.arena_bytes
    descriptor = memfd.create("flashboot-doctor", nbytes)
    try:
        Packing(planned).move_to(os.dup(descriptor), nbytes)
        memfd.make_immutable(descriptor)
        got = by_name(planned.layout, as_tensor(map_arena(descriptor, nbytes, writable=False)))
    finally:
        os.close(descriptor)
    wrong = [name for name, tensor in given.items() if not torch.equal(tensor, got[name])]
    if wrong:
        raise Odd("wrong", f"{torch.__version__} views other bytes than were packed: {', '.join(wrong)}")
    return str(torch.__version__)


def native() -> str:
    from flashboot_agent import _native

    return os.path.basename(_native.__file__)


def plug_in() -> str:
    points = entry_points(group=GROUP, name="flashboot")
    if {point.value for point in points} != {REGISTER}:
        raise Odd("wrong", f"entry point flashboot in {GROUP}: {[point.value for point in points]}, not {REGISTER}")
    chosen = os.environ.get("SGLANG_PLUGINS", "")
    if chosen and "flashboot" not in [name.strip() for name in chosen.split(",")]:
        raise Odd("wrong", f"SGLANG_PLUGINS={chosen} leaves flashboot out", "add flashboot to it, or unset it")
    for point in points:
        point.load()
    return f"{GROUP}: {REGISTER}"


def symbols() -> str:
    if odd := list(seams.problems(seams.SEAMS)):
        raise Odd("wrong", "\n".join(odd))
    return f"{len(seams.SEAMS)} names of SGLang are as known"


def hooks() -> str:
    import sglang.srt.managers.scheduler  # noqa: F401 # what an engine has imported when our hooks go in

    wanted = plugin.scheduler_hooks()
    plugin.install(wanted)
    plugin.verify()
    return f"{len(wanted)} are in"


_PAIR: Final = f"use an image with SGLang {SGLANG_VERSION} and this FlashBoot in one Python (docs/engine.md)"

CHECKS: Final = (
    Check("sglang", sglang, f"run this in the engine's image; {_PAIR}"),
    Check("torch", torch, "use the torch that SGLang's image brings"),
    Check("native", native, "install the FlashBoot wheel for this Python and machine"),
    Check("plug-in", plug_in, "install the package into the Python that runs SGLang: pip install flashboot[engine]"),
    Check("symbols", symbols, _PAIR),
    Check("hooks", hooks, _PAIR),
)
