"""Why a command could not do its work."""

from __future__ import annotations


class CannotDo(Exception):
    """The words of the user are fine, but it can't be done; the message says why and what to do."""
