"""The pages: the site builds strictly, and what scripts make of the code is up to date."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run(*arguments, **settings):
    return subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, check=False, **settings
    )


def built(tmp_path, config=ROOT / "mkdocs.yml"):
    return run("-m", "mkdocs", "build", "--strict", "--config-file", config, "--site-dir", tmp_path / "site")


def test_the_site_builds_strictly(tmp_path):
    result = built(tmp_path)
    assert result.returncode == 0, result.stderr
    for page in (
        "index.html",
        "reference/flags/index.html",
        "tutorials/own_data/index.html",
        "search/search_index.json",
    ):
        assert (tmp_path / "site" / page).is_file()


@pytest.mark.parametrize(
    "broken", ["[no page](nowhere.md)", "[no anchor](architecture.md#nowhere)", "[no file](../nowhere.py)"]
)
def test_a_broken_link_fails(tmp_path, broken):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Title\n\n{broken}\n")
    (tmp_path / "docs" / "architecture.md").write_text("# Architecture\n")
    config = (ROOT / "mkdocs.yml").read_text().split("nav:\n")[0] + "nav: [index.md, architecture.md]\n"
    config = config.replace("[scripts/docs", f"[{ROOT}/scripts/docs")
    (tmp_path / "mkdocs.yml").write_text(config)
    assert built(tmp_path, tmp_path / "mkdocs.yml").returncode != 0


@pytest.mark.parametrize(
    ("script", "files"),
    [
        ("flag_reference.py", ["docs/reference/flags.md"]),
        ("hyperparameter_reference.py", ["docs/reference/hyperparameters.md"]),
        ("architecture_figures.py", ["docs/images/packages.svg", "docs/images/data_path.svg"]),
    ],
)
def test_generated_files_are_those_of_the_code(tmp_path, script, files):
    target = tmp_path if len(files) > 1 else tmp_path / Path(files[0]).name
    assert run(f"scripts/docs/{script}", target).returncode == 0
    for file in files:
        assert (tmp_path / Path(file).name).read_text() == (ROOT / file).read_text(), (
            f"run python scripts/docs/{script}"
        )
