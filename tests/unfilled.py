"""Networks whose weights exist by name and shape only, where a test reads no value: drawing them takes most time."""

import contextlib
from collections.abc import Iterator

import keras


@contextlib.contextmanager
def unfilled_weights() -> Iterator[None]:
    """What is built inside has no values. Keras would draw them all with the next built network, so it forgets them."""
    try:
        with keras.StatelessScope(initialize_variables=False):
            yield
    finally:
        keras.utils.clear_session(free_memory=False)
