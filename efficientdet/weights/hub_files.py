"""Models in a repository of the Hugging Face Hub: hf://USER/NAME, or hf://USER/NAME/FILE.

Files are stored as huggingface_hub stores them, with the list of the repository's files beside them. What is stored is
used without a request, also where huggingface_hub is not installed.
"""

from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from dataset.files.untrusted_values import listed
from program_support.atomic_files import write_text
from program_support.errors import InputError

SCHEME = "hf://"
_INDEX = ".index"  # of a TensorFlow bundle: a checkpoint of this project or of google/automl
_KINDS = (".safetensors", ".pth", ".pth.tar", ".pt", ".onnx", ".bin", ".h5", _INDEX, ".tflite")  # preferred first
_TIMEOUT_SECONDS = 5.0
_TEXTS = {".json", ".names", ".pbtxt", ".txt", ".yaml"}  # beside weights: architecture, description, class names


def hub_path(url: str, folder: Path, *, log: Callable[[str], None]) -> Path:
    """Return the path of a repository's weights or exported file below the folder, downloaded if they are not there.

    Text files beside them, such as config.json, are there too.

    Raises:
        InputError: without the URL, if there are no such weights or they cannot be downloaded.
    """
    user, name, file = parts_of(url)
    stored = folder / f"models--{user}--{name}"
    listing, revision = stored / "files.txt", stored / "refs" / "main"
    if listing.exists() and revision.exists():
        snapshot = stored / "snapshots" / revision.read_text(encoding="utf-8")
        paths = [snapshot / each for each in _needed(listing.read_text(encoding="utf-8").splitlines(), file)]
        if paths and all(path.exists() for path in paths):
            return paths[-1]
    require_library()
    from huggingface_hub import HfApi, errors, hf_hub_download

    try:
        # list_repo_files would try for 23 seconds to reach a server
        siblings = HfApi().model_info(f"{user}/{name}", timeout=_TIMEOUT_SECONDS).siblings or ()
        names = [sibling.rfilename for sibling in siblings]
        if not (needed := _needed(names, file)):
            expected = file or f"file of weights ({', '.join(_KINDS)})"
            raise InputError(f"has no {expected}; it has {listed(names) or 'no files'}")
        log(f"downloading {url}")
        path = [Path(hf_hub_download(f"{user}/{name}", each, cache_dir=folder)) for each in needed][-1]
        write_text(listing, "\n".join(names))
    except errors.GatedRepoError as error:
        raise InputError("is gated: accept its terms on its page, then hf auth login, or set HF_TOKEN") from error
    except errors.RepositoryNotFoundError as error:
        raise InputError("there is no such repository; for a private one hf auth login, or set HF_TOKEN") from error
    except InputError:
        raise
    except Exception as error:  # OSError, ValueError, or one of the HTTP client, which depends on the version
        raise InputError(
            f"cannot be downloaded ({_reason(error)}); or download a file elsewhere and give its path"
        ) from error
    log(f"saved {path}")
    return path


def publish(folder: str | Path, url: str, *, files: Sequence[str]) -> str:
    """Upload files of a folder to a repository, which is created if it is missing; return the address of its page.

    Raises:
        InputError: that fails.
    """
    user, name, _ = parts_of(url)
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        address = api.create_repo(f"{user}/{name}", exist_ok=True)
        api.upload_folder(
            repo_id=f"{user}/{name}", folder_path=folder, allow_patterns=list(files), commit_message="Export"
        )
    except Exception as error:  # see `hub_path`
        raise InputError(
            f"{url}: cannot be published ({_reason(error)}); the files are in {folder}. The library needs hf auth "
            "login, or HF_TOKEN with permission to write"
        ) from error
    return str(address)


def parts_of(url: str) -> tuple[str, str, str]:
    """Return user, name and file of a URL; without a file it is empty.

    Raises:
        InputError: it is none.
    """
    user, name, file = (*url.removeprefix(SCHEME).split("/", 2), "", "", "")[:3]
    if not url.startswith(SCHEME) or not user or not name:
        raise InputError("expected hf://USER/NAME or hf://USER/NAME/FILE")
    return user, name, file


def require_library() -> None:
    """Raise InputError if huggingface_hub is not installed."""
    try:
        import huggingface_hub  # noqa: F401
    except ImportError as error:
        raise InputError("needs the package huggingface_hub: pip install -e '.[hub]'") from error


def _reason(error: Exception) -> str:
    return str(error.__cause__ or error).partition("\n")[0][:300]


def _needed(names: Sequence[str], file: str) -> list[str]:
    """Return those of a repository's files that are needed, the weights last; none if there are no such weights.

    Without `file`, the weights are the one file of the most preferred kind in the first folder.

    Raises:
        InputError: there are several.
    """
    # NAME.bin beside NAME.xml is a part of an exported file
    possible = [name for name in names if "/" not in name and f"{name.removesuffix('.bin')}.xml" not in names]
    of_kinds = ([name for name in possible if name.endswith(kind)] for kind in _KINDS)
    weights = [name for name in names if name == file] if file else next(filter(None, of_kinds), [])
    if len(weights) > 1:
        raise InputError(f"has {listed(weights)}; name one: hf://USER/NAME/FILE")
    beside = [
        name
        for each in weights
        for name in names
        if PurePosixPath(name).parent == PurePosixPath(each).parent
        and (PurePosixPath(name).suffix in _TEXTS or name.startswith(f"{each.removesuffix(_INDEX)}.data-"))
    ]
    return beside + weights
