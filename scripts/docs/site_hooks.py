r"""Hooks of mkdocs: what GitHub shows as it is and a site does not.

Links from a page to files that are not part of the site become their names. `\|` in code within a table, which GitHub
needs, becomes `|`. Each page ends with its keywords of mkdocs.yml, so that the search finds it by words of other
libraries. The site has llms.txt (llmstxt.org): its pages with their first paragraphs, for programs.
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


def on_nav(nav, *, config, files):
    """Keep the pages in the order of the navigation, for `on_post_build`."""
    config.extra["pages"] = nav.pages
    return nav


def on_post_build(*, config) -> None:
    """Write llms.txt: the title of each page, its address and its first paragraph."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for page in config.extra["pages"]:
        paragraphs = re.split(r"\n{2,}", page.markdown)
        first = next((text for text in paragraphs if re.match(r"(?!```)[A-Za-z`*]", text)), "").replace("\n", " ")
        lines.append(f"- [{page.title}]({page.canonical_url or page.url or '.'}): {first}")
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
