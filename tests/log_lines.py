"""The log of a function that takes one."""


def logged(function, *arguments, **settings):
    """Call a function with a log; return its result and the logged lines."""
    lines = []
    return function(*arguments, log=lines.append, **settings), lines
