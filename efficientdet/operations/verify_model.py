"""Repetition of a training from its provenance: the same weights, or an AP within the interval?"""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from efficientdet.checkpoints.provenance import FILE_NAME, checksums, code_version, machine, read_provenance
from efficientdet.data_checks.findings import as_hparams
from efficientdet.operations.results import VerificationResult
from efficientdet.quickstart.programs import run_program
from program_support.errors import InputError

# Options of files, of the log and of what a resumed training does: the weights do not depend on them
_NOT_REPEATED = {"model_dir", "resume", "testdev_dir", "loggers", "mlperf_log", "log_filename", "eval_batch_size"}


def verify(model_dir: str | os.PathLike[str]) -> VerificationResult:
    """Train again as the provenance states, in a temporary folder and with --deterministic; compare the weights.

    Raises:
        InputError: there is no provenance of a training of this program, or a file it was made from has changed.
    """
    folder = Path(model_dir)
    stored = read_provenance(folder / "ckpt-final")
    if stored is None or "options" not in stored:
        raise InputError(f"{folder / FILE_NAME}: expected the provenance of a training of this version of train.py")
    _check_files(folder, stored)
    here = {"code": code_version(), **machine()}
    for name, before in {"code": stored["code"], **stored["machine"]}.items():
        if here.get(name, before) != before:
            print(f"note: {name} differs: {before} then, {here[name]} now")
    with tempfile.TemporaryDirectory(prefix="verify") as temporary:
        print(f"training again: {stored['last_step']} steps; this takes as long as the training did", flush=True)
        options = {name: value for name, value in stored["options"].items() if name not in _NOT_REPEATED}
        if isinstance(options.get("hparams"), dict):  # as `efficientdet.train` accepts them
            options["hparams"] = as_hparams(options["hparams"])
        fixed = {"model_dir": temporary, "batch_size": stored["batch_size"], "deterministic": True}
        run_program("train", {**options, **fixed})
        repeated = read_provenance(Path(temporary, "ckpt-final"))
    assert repeated is not None  # every training writes it
    result = VerificationResult(
        equal_weights=_by_name(stored["weights"]) == _by_name(repeated["weights"]),
        ap=_ap(repeated),
        ap_before=_ap(stored),
        interval_before=tuple(stored["metrics"].get("intervals", {}).get("numbers", {}).get("AP", ())),
    )
    print(result.line)
    return result


def _check_files(folder: Path, stored: Mapping[str, Any]) -> None:
    for name, sums in stored["files"].items():
        for path, expected in sums.items():
            try:
                found = checksums([path]).get(path)
            except OSError as error:
                raise InputError(f"{path}: cannot be read ({error.strerror})") from error
            if found != expected:
                problem = "is missing" if found is None else "has changed since the training"
                raise InputError(f"{path}: {problem}; {folder / FILE_NAME} names it under {name}")


def _by_name(sums: Mapping[str, str]) -> dict[str, str]:
    return {Path(path).name: value for path, value in sums.items()}


def _ap(provenance: Mapping[str, Any]) -> float | None:
    return provenance["metrics"].get("AP")
