"""Where kubectl and helm are: named by the environment, else those that the rack brought, else on the PATH."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from kit.errors import KitError

RACK_BIN = Path(__file__).resolve().parents[2] / "build" / "rack" / "bin"


def find(tool: str) -> Path:
    """Path of `kubectl` or `helm`.

    Raises KitError, which says how to get it.
    """
    variable = f"FLASHBOOT_{tool.upper()}"
    named = os.environ.get(variable)
    if named:
        if not os.access(named, os.X_OK):
            raise KitError(f"{variable}={named} is no executable file")
        return Path(named)
    found = shutil.which(tool, path=f"{RACK_BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if found is None:
        raise KitError(f"{tool} is neither named by {variable} nor on the PATH; `make rack-up` builds it")
    return Path(found)
