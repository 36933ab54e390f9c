"""What --max_bad_fraction, of conversions and trainings alike, would have to be."""


def allowing_fraction(bad: int, total: int) -> str:
    """The smallest round value of --max_bad_fraction that lets this pass."""
    return f"{min(bad / total + 0.0005, 1.0):.3f}" if bad < total else "1"
