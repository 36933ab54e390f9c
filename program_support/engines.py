"""Where a program applies a function to many items: in its own processes, or by an engine, which is a plugin.

An engine is a function of the group `efficientdet.engines` that returns a `Cluster`:
`ENGINE() -> ContextManager[Cluster]`. The name of an engine is the value of --engine.
"""

import contextlib
from collections.abc import Callable, Generator
from typing import Annotated, Any, NamedTuple, Protocol

from program_support.checked_fields import Help, Limit
from program_support.plugins import BUNDLED, load_plugin, plugin_names

LOCAL = "local"
_GROUP = "efficientdet.engines"
_OF_THIS_PROJECT = (LOCAL, *BUNDLED[_GROUP])
Engine = Annotated[
    str,
    Limit(
        lambda name: name in _OF_THIS_PROJECT or name in plugin_names(_GROUP), f"one of {', '.join(_OF_THIS_PROJECT)}"
    ),
    Help(
        "Where the work is done: local, by processes of this machine; ray, by the Ray cluster whose address the "
        "variable RAY_ADDRESS holds, else by the one that runs on this machine, else by a new one of its cores."
    ),
]


class Finished(NamedTuple):
    """The result of a function for consecutive items, or why the process that has the single item dies each time.

    printed: what the function wrote to the standard output.
    """

    start: int
    stop: int
    result: Any
    crash: str = ""
    printed: str = ""


class Items(Protocol):
    """A sequence whose slices can be sent to a node."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Any: ...


class Cluster(Protocol):
    """A connected cluster."""

    def run(
        self,
        function: Callable[[Any], Any],
        items: Items,
        *,
        size: int = 1,
        check: Callable[[], None] = lambda: None,
    ) -> Generator[Finished, None, None]:
        """Yield a `Finished` for each part of the items as it ends, in any order.

        Args:
            function: function of a slice of the items, which must be repeatable; it is called on a node.
            items: items.
            size: items in a part. A part whose process dies is repeated, then halved.
            check: called several times per second; it may raise.

        Raises:
            InputError: of the function, and for a node with other versions of this program or of its packages.
            OSError: of the function.
        """

    def summary(self) -> str:
        """Return what was done, in words: parts, nodes, CPU time and repetitions."""


def connected(engine: str) -> contextlib.AbstractContextManager[Cluster]:
    """Connect to the cluster of an engine other than `LOCAL`."""
    cluster: contextlib.AbstractContextManager[Cluster] = load_plugin(_GROUP, engine)()
    return cluster
