"""Batches of records whose errors are reported in one line with the name of the record."""

import contextlib
import queue
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from dataset.records.record_index import RecordReader
from dataset.records.verify import inspect_record
from object_detection.structures import Tensor
from program_support.errors import InputError

# Without AutoGraph: nothing here branches on a tensor in Python, and the conversion would take seconds at each start.
without_autograph = tf.autograph.experimental.do_not_convert

Measuring = Callable[[str], contextlib.AbstractContextManager]
READ_GROUP = 16  # records per call into Python
_GROUPS_AHEAD = 4  # including the one that is waited for

_RAISED_IN_PYTHON = "Traceback (most recent call last):"
_INPUT_ERROR = re.compile(r"\bInputError: (.*?)\s*" + re.escape(_RAISED_IN_PYTHON), re.DOTALL)
_GRAPH_NODES = re.compile(r"\{\{.*?\}\}|\[\[.*|\[Op:.*", re.DOTALL)
# Other errors are not caused by records: out of memory, cancellation, or a defect of this program.
_MISTAKES_OF_DATA = (
    tf.errors.InvalidArgumentError,
    tf.errors.DataLossError,
    tf.errors.NotFoundError,
    tf.errors.PermissionDeniedError,
    tf.errors.FailedPreconditionError,
)


def input_error(error: tf.errors.OpError) -> InputError | None:
    """Return the error of reading or decoding records in one line, without graph nodes and traceback.

    Returns None if the records are not the cause; the caller then raises the original error.
    """
    if raised := _INPUT_ERROR.search(error.message):
        return InputError(" ".join(raised[1].split()))
    if _RAISED_IN_PYTHON in error.message or not isinstance(error, _MISTAKES_OF_DATA):
        return None
    return InputError(f"a record cannot be used: {_words(error)}")


def _words(error: tf.errors.OpError) -> str:
    return " ".join(_GRAPH_NODES.sub("", error.message).split())


# Iterators that the garbage collector found in another thread than the one that used them, perhaps in a call of theirs:
# their destruction waits for the end of such calls. They are destroyed when the next iteration starts.
_ended_elsewhere: queue.SimpleQueue = queue.SimpleQueue()


class ReadAhead:
    """Payloads of records in groups, of which the next ones are being read while a caller works on one.

    Only threads of the reader wait for the storage. TensorFlow has one thread per core: while one waits, it decodes
    nothing.
    """

    def __init__(
        self, reader: RecordReader, numbers_of: Callable[[int], np.ndarray], *, measuring: Measuring = nullcontext
    ):
        """Set the reader, and the function that returns the record numbers of a group, none behind the last one.

        measuring: measures the time of waiting for the storage, named "reading".
        """
        self._reader, self._numbers_of, self._measuring = reader, numbers_of, measuring
        self._started: dict[int, Callable[[], list[bytes]]] = {}
        self._lock = threading.Lock()  # a dataset may have several iterators

    def read(self, group: int) -> list[bytes]:
        """Return the payloads of a group.

        Raises:
            InputError: as `RecordReader.read` does.
        """
        groups = range(group, group + _GROUPS_AHEAD)
        with self._lock:
            for missing in set(groups) - set(self._started):
                self._started[missing] = self._reader.start_reading(self._numbers_of(missing))
            finish = self._started[group]
            # Others belong to an iterator that has ended.
            self._started = {number: self._started[number] for number in groups[1:]}
        with self._measuring("reading"):
            return finish()


def read_records(reader: RecordReader, numbers: np.ndarray) -> tf.data.Dataset:
    """Return a dataset of (serialized record, number), scalars, of the records with these numbers [n]."""
    ahead = ReadAhead(reader, lambda group: numbers[group * READ_GROUP :][:READ_GROUP])

    def read(group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.array(ahead.read(int(group)), dtype=object), numbers[group * READ_GROUP :][:READ_GROUP]

    @without_autograph
    def read_group(group: Tensor) -> tuple[Tensor, ...]:
        tensors = tf.numpy_function(read, [group], (tf.string, tf.int64), stateful=False)
        return tuple(tf.ensure_shape(tensor, [None]) for tensor in tensors)

    return tf.data.Dataset.range(-(-len(numbers) // READ_GROUP)).map(read_group).unbatch()


def _without_tuning() -> tf.data.Options:
    """Return options without the thread that tunes parallelism while the pipeline runs.

    The end of an iterator waits for that thread, and TensorFlow 2.21 sometimes fails to wake it: it sleeps on, for as
    long as the iterator has existed and at most a minute.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return options


class Rows(NamedTuple):
    """The records of the B rows of a batch."""

    numbers: np.ndarray  # [B] record numbers, or [B, 1 + F] with those of F further images, -1 where there are none
    positions: np.ndarray  # [B] int64, positions in the stream


class RecordBatches:
    """Batches of a tf.data pipeline over records; iterating raises InputError, naming file, offset and image.

    TensorFlow's own errors name a graph node. After an error, the records of the failed batch, which the deterministic
    order identifies, are processed again one by one.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        reader: RecordReader,
        *,
        rows_of: Callable[[int], Rows],
        example: Callable[[Tensor, Tensor], Any],
        category_ids: tuple[int, ...] | None = None,
        images: int | None = None,
    ):
        """Wrap a pipeline.

        rows_of: batch number from 0 -> its records. example: the pipeline's function of (serialized record, position).
        images: number of them, None without an end.
        """
        self.images = images
        self._dataset, self._reader, self._rows_of = dataset.with_options(_without_tuning()), reader, rows_of
        self._example, self._category_ids = example, category_ids

    @property
    def element_spec(self) -> Any:
        """Shapes and types of a batch, as in tf.data.Dataset."""
        return self._dataset.element_spec

    def __iter__(self) -> Iterator[Any]:
        with contextlib.suppress(queue.Empty):
            while True:
                _ended_elsewhere.get_nowait()
        batches, done, thread = iter(self._dataset), 0, threading.get_ident()
        try:
            while True:
                failure = None
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                except tf.errors.OpError as error:
                    if (failure := input_error(error)) is None:
                        raise
                    read = _RAISED_IN_PYTHON not in error.message  # otherwise the message already has the name
                    failure = (self._culprit(done) if read else None) or failure
                if failure:  # TensorFlow's error is left out: its traceback would keep the iterator
                    raise failure
                yield batch
                done += 1
        finally:
            if threading.get_ident() != thread:
                _ended_elsewhere.put(batches)
            del batches

    def _culprit(self, batch_number: int) -> InputError | None:
        rows, index = self._rows_of(batch_number), self._reader.index
        numbers = rows.numbers.reshape(len(rows.positions), -1)
        positions = np.broadcast_to(rows.positions[:, None], numbers.shape)
        for number, position in zip(numbers[numbers >= 0].tolist(), positions[numbers >= 0].tolist(), strict=True):
            (payload,) = self._reader.read(np.array([number]))
            if failure := self._failure(payload, position):
                inspection = inspect_record(payload, category_ids=self._category_ids)
                return InputError(
                    f"{index.path(number)}: the record at byte {index.start(number)} "
                    f"({inspection.name}) cannot be used: {inspection.contradiction or failure}"
                )
        return None

    def _failure(self, payload: bytes, position: int) -> str:
        try:
            with tf.device("CPU"):
                self._example(tf.constant(payload), tf.constant(position, tf.int64))
        except tf.errors.OpError as error:
            return _words(error)
        return ""
