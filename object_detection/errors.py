"""The one exception that means: what the user gave is at fault."""


class InputError(ValueError):
    """A file, flag or value from outside is wrong; the entry points print the message and exit with code 2.

    The message is one line that says what was found, what was wanted, and where (file, image id, annotation id).
    """
