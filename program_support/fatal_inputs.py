"""Inputs that end every process which reads them, in tasks of a Ray cluster: they are found by halving and left out."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from program_support.errors import InputError
from program_support.ray_tasks import MOST_ATTEMPTS, Finished, RayCluster


def run_without_fatal(
    cluster: RayCluster,
    function: Callable[[Any], Any],
    tasks: Sequence[Any],
    *,
    without_fatal: Callable[[Any], Any],
    place: Callable[[Any], str],
    check: Callable[[], None] = lambda: None,
) -> Iterator[Finished]:
    """Yield the tasks as `RayCluster.run` does, those whose process dies last, without the inputs that it dies of.

    Args:
        cluster: cluster.
        function: function of a task.
        tasks: tasks.
        without_fatal: returns a task without these inputs (see `fatal_inputs`).
        place: returns the place of a task in messages.
        check: see `RayCluster.run`.

    Raises:
        InputError: the process of a task dies nevertheless.
    """
    died = []
    for done in cluster.run(function, tasks, check=check):
        if done.crash:
            died.append(done.number)
        else:
            yield done
    for done in cluster.run(function, [without_fatal(tasks[number]) for number in died], check=check):
        number = died[done.number]
        if done.crash:
            raise InputError(f"{place(tasks[number])}: cannot be processed, each time {done.crash}")
        yield done._replace(number=number)


def fatal_inputs(cluster: RayCluster, function: Callable[[Any], Any], items: Sequence[Any]) -> list[int]:
    """Return which of the items the function cannot be called for in a list without the death of its process."""
    groups, found = [list(range(len(items)))], list[int]()
    while groups:
        attempts = 1 if any(len(group) > 1 for group in groups) else MOST_ATTEMPTS
        following = []
        for done in cluster.run(function, [[items[number] for number in group] for group in groups], attempts=attempts):
            group = groups[done.number]
            half = len(group) // 2
            if done.crash and half:
                following += [group[:half], group[half:]]
            elif done.crash and attempts > 1:
                found += group
            elif done.crash:
                following.append(group)
        groups = following
    return sorted(found)
