"""The pages: the site builds strictly, and what scripts make of the code is up to date."""

import html
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import chromium
import pytest

ROOT = Path(__file__).resolve().parent.parent


def run(*arguments, **settings):
    return subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, check=False, **settings
    )


def built(tmp_path, config=ROOT / "mkdocs.yml"):
    return run("-m", "mkdocs", "build", "--strict", "--config-file", config, "--site-dir", tmp_path / "site")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built")
    result = built(folder)
    assert result.returncode == 0, result.stderr  # strict: a warning is an error
    return folder / "site"


def test_flags_show_their_choices(site):
    """absl's <auto|coco|...> was an HTML tag, which a browser does not show."""
    text = (site / "reference" / "flags" / "index.html").read_text()
    assert "One of <code>averaged</code>, <code>raw</code>" in text
    assert not re.search(r"<[a-z0-9_.]+\|", text)


def test_the_site_lists_its_pages_for_programs(site):
    lines = (site / "llms.txt").read_text().splitlines()
    pages = [re.fullmatch(r"- \[(.+)\]\((.*)\): ?(.*)", line) for line in lines[4:]]
    assert lines[0].startswith("# ")
    assert len(pages) == len([*(site).glob("**/index.html")])
    assert sum(bool(page[3]) for page in pages) > len(pages) / 2


def test_code_has_no_escapes_of_tables(site):
    for page in site.glob("**/index.html"):
        assert not re.findall(r"<code>[^<]*\\\|[^<]*</code>", page.read_text()), page
    assert "efficientnet-|resample_p6|fpn_cells" in (site / "tutorials" / "fine_tuning" / "index.html").read_text()


def test_signatures_have_a_line_for_each_argument(site):
    text = (site / "reference" / "python" / "index.html").read_text()
    signatures = re.findall(r"doc-signature.*?</pre>", text, re.DOTALL)
    assert len(signatures) > 10
    longest = max(len(line) for text in signatures for line in html.unescape(re.sub("<[^>]+>", "", text)).splitlines())
    assert longest < 90
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert any(line.startswith("ruff") for line in extras["docs"])  # mkdocstrings formats signatures with it


@pytest.mark.slow
@pytest.mark.skipif(chromium.PROGRAM is None, reason="Chromium is not installed: apt-get install chromium")
def test_code_fits_on_a_small_screen(site, tmp_path):
    """83 of 117 code blocks were clipped at 1280 pixels."""
    clipped = "[...document.querySelectorAll('pre > code')].filter(code => code.scrollWidth > code.clientWidth).length"
    with chromium.chromium(tmp_path) as tab:
        tab.call("Emulation.setScriptExecutionDisabled", value=True)  # the site's search, not its layout
        for page in sorted(site.glob("*/**/index.html")):
            tab.open(page.as_uri(), width=1280, height=900)
            assert tab.value(clipped) == 0, page
            assert tab.value("document.documentElement.scrollWidth") == 1280, page


@pytest.mark.parametrize(
    ("word", "page"),
    [
        ("freeze", "tutorials/fine_tuning/"),
        ("tiling", "guides/large_images/"),
        ("imbalance", "guides/train/"),
        ("tracking", "guides/inference/"),
        ("callbacks", "reference/python/"),
        ("rtsp", "guides/inference/"),
        ("mAP50", "guides/evaluate/"),
        ("add class", "tutorials/add_data/"),
    ],
)
def test_words_of_users_are_found(site, word, page):
    index = json.loads((site / "search" / "search_index.json").read_text())
    assert any(
        entry["location"].partition("#")[0] == page and re.search(rf"\b{word}\b", entry["text"])
        for entry in index["docs"]
    )


@pytest.mark.parametrize("targets", [("nowhere.md", "architecture.md#nowhere"), ("../nowhere.py",)])
def test_broken_links_are_found(tmp_path, targets):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Title\n\n" + "".join(f"[text]({target})\n" for target in targets))
    (tmp_path / "docs" / "architecture.md").write_text("# Architecture\n")
    top, _, rest = (ROOT / "mkdocs.yml").read_text().partition("nav:\n")
    config = top + "nav: [index.md, architecture.md]\n" + rest[rest.index("extra:\n") :]
    config = config.replace("[scripts/docs", f"[{ROOT}/scripts/docs")
    (tmp_path / "mkdocs.yml").write_text(config)
    done = built(tmp_path, tmp_path / "mkdocs.yml")
    assert done.returncode != 0
    assert [target for target in targets if target not in done.stderr] == []


@pytest.mark.parametrize(
    ("script", "files"),
    [
        ("flag_reference.py", ["docs/reference/flags.md", "efficientdet/__init__.pyi"]),
        ("hyperparameter_reference.py", ["docs/reference/hyperparameters.md"]),
    ],
)
def test_generated_files_are_those_of_the_code(tmp_path, script, files):
    target = tmp_path / Path(files[0]).name if script.startswith("hyper") else tmp_path
    assert run(f"scripts/docs/{script}", target).returncode == 0
    for file in files:
        assert (tmp_path / Path(file).name).read_text() == (ROOT / file).read_text(), (
            f"run python scripts/docs/{script}"
        )


def test_the_stages_of_the_data_path_are_in_the_code():
    stages = re.findall(r"`([\w.]+):(\w+)`", (ROOT / "docs/architecture.md").read_text())
    assert len(stages) == 9
    for module, name in stages:
        assert re.search(rf"^(def|class) {name}\b", (ROOT / f"{module.replace('.', '/')}.py").read_text(), re.MULTILINE)
