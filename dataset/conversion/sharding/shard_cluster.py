"""Convert shards on a Ray cluster; images that kill the process which decodes them are found and skipped.

This module does not import TensorFlow; the workers do.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from dataset.conversion.annotations import AnnotatedImage
from dataset.conversion.sharding.shard_files import CONTINUE, remove_partial_files
from dataset.conversion.sharding.shard_task import ShardTask
from program_support.errors import InputError
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

            def convert(tasks: Sequence[ShardTask]) -> list[tuple[ShardTask, str]]:
                """Convert shards; return those whose process dies, with the reason."""
                died = []
                for done in cluster.run(_convert, tasks, check=check):
                    if done.crash:
                        died.append((tasks[done.number], done.crash))
                    else:
                        count = len(tasks[done.number].images)
                        progress.advance(count, images=count)
                return died

            without_fatal = [replace(task, fatal=_fatal_images(cluster, task)) for task, _ in convert(tasks)]
            for task, reason in convert(without_fatal):
                raise InputError(f"{task.finished_path}: cannot be written, each time {reason}; {CONTINUE}")
            print(cluster.summary())
    finally:
        remove_partial_files(tasks[0].config)


def _fatal_images(cluster: RayCluster, task: ShardTask) -> frozenset[str]:
    images = [*task.images]
    fatal = cluster.crashing(partial(_decode, replace(task, images=())), images)
    return frozenset(images[number].file_name for number in fatal)


def _convert(task: ShardTask) -> None:
    from dataset.conversion.convert import convert_shard

    convert_shard(task, image_done=lambda: None)


def _decode(task: ShardTask, images: Sequence[AnnotatedImage]) -> None:
    from dataset.conversion.convert import decode_images

    decode_images(task, images)
