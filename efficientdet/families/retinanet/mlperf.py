"""What MLPerf's rules call RetinaNet and its weights (mlcommons/training, single_stage_detector; benchmark of 2.0 to 5.1)."""

from collections.abc import Iterable

from efficientdet.run_log.mlperf_log import version_of
from program_support.errors import InputError

_FIRST, _RENAMED = (2, 0, 0), (5, 0, 0)
_MODULE = "module."  # the reference logs the names of its model behind DistributedDataParallel


def benchmark(ruleset: str | None) -> str:
    """`ssd` (single stage detector) up to 4.1, `retinanet` from 5.0 on. Raises InputError for rules before 2.0: their `ssd` is
    SSD300."""
    version = version_of(ruleset) if ruleset else _FIRST
    if version < _FIRST:
        raise InputError(f"--mlperf_ruleset={ruleset}: knows no RetinaNet, its benchmark ssd is SSD300; wanted 2.0.0 or later")
    return "retinanet" if version >= _RENAMED else "ssd"


def tensors(names: Iterable[str]) -> list[str]:
    """Convolutions' weights and biases by torch's names; frozen batch norms, which hold no parameters there, are left out.

    `names` are ours: torch's with slashes, `kernel` for `weight`.
    """
    names = set(names)
    convolutions = {name.removesuffix("/kernel") for name in names if name.endswith("/kernel")}
    found = [f"{layer}/weight" for layer in convolutions]
    found += [f"{layer}/bias" for layer in convolutions if f"{layer}/bias" in names]
    return sorted(_MODULE + name.replace("/", ".") for name in found)
