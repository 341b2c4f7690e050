"""The one error of this package: it says what to do, and the command line prints it without a traceback."""


class SetupError(Exception):
    """Something that a person has to put right: the message names it and the way out."""
