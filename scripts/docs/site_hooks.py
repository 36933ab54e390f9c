"""Hooks of mkdocs: links from a page to files that are not part of the site become their names."""

import re
from pathlib import Path

_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(((?:\.\./)+[^)\s#]*)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page, config, files) -> str:
    """Replace links that leave docs/, and links to notebooks. Raises FileNotFoundError if the file does not exist."""
    docs = Path(config.docs_dir).resolve()

    def replaced(match: re.Match) -> str:
        target = (Path(page.file.abs_src_path).parent / match[2]).resolve()
        if not target.exists():
            raise FileNotFoundError(f"{page.file.src_path}: link to {match[2]}, which does not exist")
        return match[0] if target.is_relative_to(docs) and target.suffix != ".ipynb" else match[1]

    return _LINK.sub(replaced, markdown)
