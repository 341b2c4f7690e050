"""Python reads this first in an agent whose chunk server shall hang while its control API answers.

It hangs for each new child while the file exists that FLASHBOOT_TEST_WEDGE names.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from flashboot_agent.transport.conversation import Conversation

FILE = Path(os.environ["FLASHBOOT_TEST_WEDGE"])
converse = Conversation._converse


def stuck(self: Conversation) -> None:
    while FILE.exists():
        time.sleep(0.05)
    converse(self)


Conversation._converse = stuck  # type: ignore[method-assign]
