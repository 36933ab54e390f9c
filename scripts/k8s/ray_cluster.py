"""The Ray cluster of render.py --kind=rayjob: its pods' resources and the command that it runs."""

import re
import shlex
from pathlib import Path
from typing import Any

LONGEST_NAME = 47  # characters; KubeRay's limit: it appends up to 16, such as -abcde-serve-svc
_LOCK = Path(__file__).parents[2] / "requirements.lock"


def ray_values(workers: int | None, gpus: int, command: tuple[str, ...], *, secret: str | None) -> dict[str, Any]:
    """Return the values of the template: `workers` pods, among which the GPUs are divided.

    secret: name of the Secret whose keys are variables of the processes.

    Raises:
        ValueError: for numbers or a command that no cluster could run.
    """
    if workers is None or workers < 1:
        found = "--kind=rayjob" if workers is None else f"--workers={workers}"
        raise ValueError(f"{found}: expected --workers=N, the number of worker pods, at least 1")
    if gpus % workers:
        raise ValueError(f"--gpus={gpus}: expected 0 or a multiple of --workers={workers}")
    if not command:
        raise ValueError("--kind=rayjob: expected a command after --, such as -- python infer.py --engine=ray ...")
    for word in command:
        if not word.isprintable():
            raise ValueError(f"{word!r}: expected a word of the command without control characters")
    gpus_per_pod = gpus // workers
    version = re.search(r"^ray==(\S+)", _LOCK.read_text(encoding="utf-8"), re.MULTILINE) if _LOCK.exists() else None
    return {
        "ray_version": version and version[1],
        "pods": workers,
        "cpu": str(8 * max(1, gpus_per_pod)),
        "memory": f"{80 * gpus_per_pod or 32}Gi",
        "gpus_per_pod": str(gpus_per_pod) if gpus_per_pod else None,
        "env_from": secret and [{"secretRef": {"name": secret}}],
        # KubeRay runs `ray job submit -- ENTRYPOINT` in a shell; Ray quotes the words again for the shell on the head
        "command": shlex.join(command),
    }
