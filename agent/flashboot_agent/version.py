"""Which FlashBoot this is."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache  # asked many times a second, and read from the package's files
def own_version() -> str:
    """Of the installed distribution; `0+source` for a checkout that is not installed."""
    try:
        return version("flashboot")
    except PackageNotFoundError:
        return "0+source"
