"""The one error of the rack: it says what failed, where the log is, and what to do."""


class RackError(Exception):
    """Something did not come up, or the machine cannot run a rack."""
