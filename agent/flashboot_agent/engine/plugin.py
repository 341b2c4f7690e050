"""The entry point `sglang.srt.plugins`: SGLang calls `register` early in each of its processes.

SGLang logs and swallows what a plug-in raises, and would go on without it. So whatever goes wrong here while the
command line is ours ends the process (SystemExit is not swallowed), and our flags are such that an SGLang without this
hook fails by itself: load format `private` has no loader of its own, and every other loader refuses our extra config.
Imports at the top stay within the standard library, because a failed import would be swallowed as well.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable
from typing import Any, Final

GET_MODEL_LOADER: Final = "sglang.srt.model_loader.loader.get_model_loader"
MEMORY_SAMPLE: Final = "sglang.srt.model_executor.model_runner.ModelRunner.init_torch_distributed"
SCHEDULER_MODULE: Final = "sglang.srt.managers.scheduler"


def register() -> None:
    """Install the hooks that this process needs. Does nothing visible in an engine that is not ours."""
    try:
        _register(sys.argv[1:])
    except Exception as error:  # whatever keeps the hook out must end our engine; SGLang only logs it
        if _named_on_command_line():
            raise SystemExit(f"flashboot: the engine does not start: {type(error).__name__}: {error}") from error
        raise  # not ours: SGLang logs it and goes on without us, as without any plug-in


def _register(arguments: list[str]) -> None:
    from importlib.metadata import version

    from flashboot_agent.engine.drain import end_at_once_before_serving
    from flashboot_agent.engine.meeting import wait_for_name
    from flashboot_agent.engine.preflight import asked, before_start
    from flashboot_agent.engine.support import require_version

    found = version("sglang")
    ours = asked(arguments)
    main = ours is not None and multiprocessing.parent_process() is None
    if ours is not None:
        require_version(found)
    if main:
        end_at_once_before_serving()
        before_start(arguments)
        wait_for_name(arguments)
    if SCHEDULER_MODULE in sys.modules:  # a scheduler's process, or a program with an Engine of its own, which is both
        install({**scheduler_hooks(), **main_hooks()})
        verify()
    elif main:
        install(main_hooks())


def scheduler_hooks() -> dict[str, Callable[..., Any]]:
    """All hooks of a process that loads models. (Others would import SGLang's model code for nothing.)"""
    from flashboot_agent.engine import guard, session

    return {
        GET_MODEL_LOADER: get_model_loader,
        MEMORY_SAMPLE: session.before_memory_sample,
        **guard.scheduler_hooks(),
    }


def main_hooks() -> dict[str, Callable[..., Any]]:
    """The hooks of the process that will listen; they put in others once SGLang has imported what those go around."""
    from flashboot_agent.engine import follower, server

    return {server.SCHEDULERS_UP: server.schedulers_up, follower.DUMMY_SERVER: follower.dummy_server}


def install(hooks: dict[str, Callable[..., Any]]) -> None:
    """Register and apply AROUND hooks now, so that a failure shows here."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, hook in hooks.items():
        HookRegistry.register(target, hook, HookType.AROUND)
    HookRegistry.apply_hooks()
    missing = sorted(set(hooks) - HookRegistry._patched)
    if missing:
        raise RuntimeError(f"SGLang did not take the hooks on {', '.join(missing)}")


def get_model_loader(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Around SGLang's factory: our loader for our config, SGLang's own for any other."""
    import inspect
    from importlib.metadata import version

    from flashboot_agent.core.errors import BadRequest
    from flashboot_agent.engine.settings import LOAD_FORMAT, settings_of
    from flashboot_agent.engine.support import require_version

    load_config = inspect.signature(original).bind(*arguments, **named).arguments["load_config"]
    settings = settings_of(load_config.model_loader_extra_config)
    if settings is None:
        return original(*arguments, **named)
    require_version(version("sglang"))
    if load_config.load_format != LOAD_FORMAT:
        raise BadRequest(
            f"FlashBoot's loader config goes with --load-format {LOAD_FORMAT}, "
            f"not {getattr(load_config.load_format, 'value', load_config.load_format)}"
        )
    from flashboot_agent.engine.loader import FlashBootLoader

    return FlashBootLoader(load_config, settings)


def verify() -> None:
    """Raises RuntimeError unless every place that asks SGLang for a loader asks us."""
    from sglang.srt.model_executor.model_runner_components import load_model_utils
    from sglang.srt.model_loader import loader

    for module in (loader, load_model_utils):
        if getattr(module.get_model_loader, "__wrapped__", None) is None:
            raise RuntimeError(f"the hook on {module.__name__}.get_model_loader is not in")


def _named_on_command_line() -> bool:
    """A crude look that can't fail: our key stands somewhere on the command line."""
    return any('"flashboot"' in argument for argument in sys.argv[1:])
