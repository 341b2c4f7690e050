"""What an engine of ours gets in the process that listens: refusals, a drain with a deadline, its times told.

SGLang's schedulers are separate processes with hooks of their own (plugin.py). The hooks here come late on purpose:
when the schedulers are up, and SGLang has imported by itself what they go around. What SGLang read from its environment
and arguments on the way there is as without us.
"""

from __future__ import annotations

import os
import socket
from typing import Any, Final

from flashboot_agent.engine import drain, guard, startup
from flashboot_agent.engine.deadlines import Deadlines
from flashboot_agent.engine.session import published_settings

SCHEDULERS_UP: Final = "sglang.srt.observability.startup_time.build_engine_startup_time"
"""SGLang calls it once, in the process that listens, when all schedulers have reported and before it listens."""


def schedulers_up(original: Any, *arguments: Any, **named: Any) -> Any:
    """Around SCHEDULERS_UP."""
    startup_time = original(*arguments, **named)
    settings = published_settings()
    if settings is not None:
        who = f"pod {os.environ.get('POD_NAME') or socket.gethostname()}, {settings.socket}"
        install(startup.Reporter(settings.socket, who, startup_time), drain.Drain(Deadlines.of().grace))
    return startup_time


def install(reporter: startup.Reporter, draining: drain.Drain) -> None:
    """Raises RuntimeError when SGLang does not take a hook; the engine then does not start."""
    from sglang.srt.runtime_context import get_serving

    from flashboot_agent.engine import plugin

    hooks: dict[str, guard.Hook] = {
        **guard.server_hooks(),
        drain.SIGTERM_HANDLER: draining.sigterm_hook,
        drain.MIDDLEWARE: draining.middleware_hook,
    }
    if get_serving().tokenizer_worker_num == 1:
        hooks[startup.STATE] = reporter.state_hook
    else:  # the workers that listen are processes of the web server's; here nobody sees when they are ready
        reporter.report(None)
    plugin.install(hooks)
