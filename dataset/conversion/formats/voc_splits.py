"""Read Pascal VOC files of a folder tree by split: from ImageSets/Main, or from folders named train, val and test."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from dataset.conversion.annotations import AnnotatedDataSet
from dataset.conversion.folder_files import FolderFiles, ImageFolder
from dataset.conversion.formats.voc import read_voc, voc_paths
from dataset.conversion.named_splits import SPLITS, split_of_each, split_of_folders, split_of_word
from program_support.errors import InputError


def read_voc_splits(annotations: str, files: Sequence[Path], images: ImageFolder) -> dict[str, AnnotatedDataSet]:
    """Read all XML files below a folder, or beside the file `annotations`; `files` are those that were recognized.

    Splits are the lists in ImageSets/Main beside a folder (train.txt, else trainval.txt), else the names of folders.
    What neither names is train if other images are held out.
    """
    given = Path(annotations) if Path(annotations).is_dir() else Path(annotations).parent
    folders = {file.parent for file in files}
    root = folders.pop() if len(folders) == 1 else given
    tree = FolderFiles(root, (".xml",))
    paths_of_folder = defaultdict(list)
    for name in tree.names:
        paths_of_folder[tree.path(name).parent].append(tree.path(name))
    if not paths_of_folder:
        raise InputError(f"{root}: holds no XML file")
    entries = [entry for folder, paths in paths_of_folder.items() for entry in _paths_by_split(folder, paths, given)]
    splits = split_of_each([str(path) for path, _ in entries], [split for _, split in entries], where=annotations)
    content = defaultdict(list)
    for (path, named), split in zip(entries, splits, strict=True):
        content[split].append((path, named))
    return {
        split: read_voc(
            annotations_folder=str(root),
            images=images,
            paths=[path for path, _ in members],
            split=split if any(named for _, named in members) else None,
        )
        for split, members in content.items()
    }


def _paths_by_split(folder: Path, paths: list[Path], given: Path) -> Iterator[tuple[Path, str | None]]:
    """Yield the files of a folder with the split that a list or a folder below the given one names, or None."""
    sets = folder.parent / "ImageSets" / "Main"
    lists = {split_of_word(path.stem): path for path in sorted(sets.glob("*.txt"))}
    if "train" not in lists and (both := sets / "trainval.txt").is_file():
        lists["train"] = both
    listed = {split: voc_paths(str(folder), str(lists[split])) for split in SPLITS if split in lists}
    for split, members in listed.items():
        yield from ((path, split) for path in members)
    if "train" not in listed:
        held_out = {path for members in listed.values() for path in members}
        named = split_of_folders(f"{folder.relative_to(given).as_posix()}/a.xml")
        yield from ((path, named) for path in paths if path not in held_out)
