"""How tf.data comes to know the functions it maps."""

import tensorflow as tf

# A decorator: nothing here branches on a tensor in Python, and rewriting it as if it did would take seconds at each start.
as_written = tf.autograph.experimental.do_not_convert
