r"""Hooks of mkdocs: what GitHub shows as it is and a site does not.

Links from a page to files that are not part of the site become their names. `\|` in code within a table, which GitHub
needs, becomes `|`. Each page ends with its keywords of mkdocs.yml, so that the search finds it by words of other
libraries.
"""

import re
from pathlib import Path

_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(((?:\.\./)+[^)\s#]*)(#[^)\s]*)?\)")
_TABLE_CODE = re.compile(r"`[^`]*`")


def on_page_markdown(markdown: str, *, page, config, files) -> str:
    """Return the page for the site.

    Raises:
        FileNotFoundError: a link names a file that does not exist.
        KeyError: mkdocs.yml has no keywords for the page.
    """
    docs = Path(config.docs_dir).resolve()

    def replaced(match: re.Match) -> str:
        target = (Path(page.file.abs_src_path).parent / match[2]).resolve()
        if not target.exists():
            raise FileNotFoundError(f"{page.file.src_path}: link to {match[2]}, which does not exist")
        return match[0] if target.is_relative_to(docs) and target.suffix != ".ipynb" else match[1]

    lines = [_without_escapes(line) if line.startswith("|") else line for line in markdown.splitlines()]
    keywords = config.extra["keywords"][page.file.src_uri]
    return _LINK.sub(replaced, "\n".join(lines)) + f"\n\nKeywords: {keywords}\n{{ .keywords }}\n"


def _without_escapes(row: str) -> str:
    """Return a row of a table with `|` in code: Markdown of the site takes it as text there, and the escape as well."""
    return _TABLE_CODE.sub(lambda match: match[0].replace("\\|", "|"), row)
