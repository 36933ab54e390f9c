"""Convert shards on a Ray cluster; images that kill the process which decodes them are found and skipped.

This module does not import TensorFlow; the workers do.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from dataset.conversion.annotations import AnnotatedImage
from dataset.conversion.sharding.shard_files import remove_partial_files
from dataset.conversion.sharding.shard_task import ShardTask
from program_support.fatal_inputs import fatal_inputs, run_without_fatal
from program_support.progress import Progress
from program_support.ray_tasks import RayCluster, ray_cluster


def convert_on_cluster(tasks: Sequence[ShardTask], *, progress: Progress, check: Callable[[], None]) -> None:
    """Convert shards; a shard is a function of its task alone, so its bytes are those of one machine.

    check: see `RayCluster.run`.

    Raises:
        InputError: a shard cannot be written, or its process dies whatever images are left out.
        OSError: for failed writes.
    """
    try:
        with ray_cluster() as cluster:
            finished = run_without_fatal(
                cluster,
                _convert,
                tasks,
                without_fatal=partial(_without_fatal, cluster),
                place=lambda task: str(task.finished_path),
                check=check,
            )
            for done in finished:
                images = len(tasks[done.number].images)
                progress.advance(images, images=images)
            print(cluster.summary())
    finally:
        remove_partial_files(tasks[0].config)


def _without_fatal(cluster: RayCluster, task: ShardTask) -> ShardTask:
    images = [*task.images]
    fatal = fatal_inputs(cluster, partial(_decode, replace(task, images=())), images)
    return replace(task, fatal=frozenset(images[number].file_name for number in fatal))


def _convert(task: ShardTask) -> None:
    from dataset.conversion.convert import convert_shard

    convert_shard(task, image_done=lambda: None)


def _decode(task: ShardTask, images: Sequence[AnnotatedImage]) -> None:
    from dataset.conversion.convert import decode_images

    decode_images(task, images)
