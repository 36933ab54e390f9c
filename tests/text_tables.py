"""Tables of parametrized tests as text: a row per line, cells between ` | `."""

import ast


def rows(text):
    """Return a tuple for each line; a cell that is a Python literal has its value, any other is text."""
    return [tuple(_value(cell.strip()) for cell in line.split(" | ")) for line in text.strip().splitlines()]


def _value(cell):
    try:
        return ast.literal_eval(cell)
    except (ValueError, SyntaxError):
        return cell
