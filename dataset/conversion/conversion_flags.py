"""Flags shared by all converters, and the conversion that they configure."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from absl import flags

from dataset.conversion.annotations import AnnotatedDataSet
from dataset.conversion.conversion_options import (
    IMAGES_WORTH_A_SHARD,
    MOST_DEFAULT_SHARDS,
    ConversionConfig,
    ConvertOptions,
    WritingOptions,
    WritingSettings,
)
from dataset.conversion.conversion_report import Report, summary_lines
from dataset.conversion.shard_files import CONTINUE, existing_shards
from dataset.conversion.shards import convert
from program_support.checked_fields import values_of
from program_support.command_line import define_flags_of
from program_support.errors import InputError, printable
from program_support.processor import available_cores
from program_support.signals import Interrupted, exit_code

IMAGES_WORTH_A_PROCESS = 500  # starting TensorFlow takes longer than it saves for fewer


def define_shared_flags() -> None:
    """Define the input and output flags."""
    flags.DEFINE_string("image_dir", "", "Folder with the images.")
    flags.DEFINE_string(
        "output_file_prefix",
        "/tmp/train",
        "Path prefix of the output shards: PREFIX-00000-of-00032.tfrecord and so on.",
    )
    define_flags_of(WritingOptions)


def conversion_config(
    options: WritingOptions,
    *,
    image_folder: str,
    output_prefix: str,
    include_masks: bool = False,
    keep_annotations: bool = False,
) -> ConversionConfig:
    """Return the configuration of a conversion.

    Raises:
        InputError: for invalid settings.
    """
    return ConversionConfig(
        image_folder=image_folder,
        output_prefix=output_prefix,
        num_shards=options.num_shards or MOST_DEFAULT_SHARDS,  # set again when the number of images is known
        processes=options.num_threads or available_cores(),
        include_masks=include_masks,
        keep_annotations=keep_annotations,
        engine=options.engine,
        **values_of(options, WritingSettings),
    )


def refuse_without_usable_objects(
    data_sets: Iterable[AnnotatedDataSet], *, crowds_as_objects: bool, are_all_splits: bool = False
) -> None:
    """Raise InputError if all objects are crowds, which training ignores, or difficult, which evaluation ignores.

    Difficult objects suffice for one split of several.
    """
    crowds = difficult = 0
    for data in data_sets:
        for image in data.images:
            for one in image.objects:
                if crowds_as_objects or not (one.is_crowd or (one.is_difficult and are_all_splits)):
                    return
                crowds += one.is_crowd
                difficult += one.is_difficult and not one.is_crowd
    if crowds or difficult:
        raise InputError(
            f"{data.source}: no usable object: of {crowds + difficult} boxes, {crowds} are crowds (iscrowd), which "
            f"training ignores, and {difficult} are difficult, which evaluation ignores; correct the labels, or set "
            "--crowds_as_objects to read them as ordinary objects"
        )


def convert_and_report(
    data: AnnotatedDataSet,
    config: ConversionConfig,
    options: WritingOptions,
    *,
    start: Callable[[], None] | None = None,
) -> Report:
    """Convert a data set, print the report and return it.

    start: function that prepares TensorFlow in a user's process; a signal then raises KeyboardInterrupt. None: GPUs are
    hidden from the process, and Ctrl-C and SIGTERM end it with one line and the shell's exit codes.
    """
    if options.num_shards is None:
        config = replace(config, num_shards=default_num_shards(config.output_prefix, images=len(data.images)))
    if options.num_threads is None:
        config = replace(config, processes=max(1, min(config.processes, len(data.images) // IMAGES_WORTH_A_PROCESS)))
    if start:
        start()
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # TensorFlow would allocate the memory of every GPU
    labeled = options.labeled_classes if isinstance(options, ConvertOptions) else ()
    with contextlib.nullcontext() if start else ending_when_interrupted():
        report = convert(data, config)
    for line in summary_lines(report, data.class_names, labeled=labeled):
        print(printable(line))  # lines may contain file names of the user
    prefix = config.output_prefix
    if config.remote_output:
        prefix = f"{config.remote_output}/{os.path.basename(prefix)}"
    written = [f"{config.num_shards} shard{'s' * (config.num_shards > 1)} {prefix}-*.tfrecord"]
    written += [
        f"{prefix}{suffix}"
        for suffix in (".report.json", ".classes.json", ".instances.json")
        if config.beside(suffix).exists()
    ]
    print(f"wrote    {', '.join(written)}")
    return report


@contextlib.contextmanager
def ending_when_interrupted() -> Iterator[None]:
    """End the block on Ctrl-C and SIGTERM with one line and the shell's exit codes, after cleanup."""
    try:
        yield
    except KeyboardInterrupt as error:
        print(f"interrupted; {CONTINUE}", file=sys.stderr)
        sys.exit(exit_code(error.number if isinstance(error, Interrupted) else signal.SIGINT))


def default_num_shards(output_prefix: str, *, images: int) -> int:
    """Return the default number of shards: the number of existing shards, so that a larger data set replaces them."""
    existing = existing_shards(output_prefix)
    return min(existing, default=max(1, min(MOST_DEFAULT_SHARDS, images // IMAGES_WORTH_A_SHARD)))
