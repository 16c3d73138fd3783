"""What MkDocs does with our pages beyond its own rules, so that they read the same on the site and as files.

- CHANGELOG.md, CONTRIBUTING.md and SECURITY.md stand at the root of the repository and are pages of the site too.
- A link to any other file outside of `docs/` becomes the path of that file: the site does not hold it.
- A list or a table may follow its sentence without an empty line; Markdown as MkDocs reads it wants one.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PROJECT_PAGES = {"CHANGELOG.md": "project/changelog.md", "CONTRIBUTING.md": "project/contributing.md"}
PROJECT_PAGES["SECURITY.md"] = "project/reporting.md"
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
BLOCK_START = re.compile(r"(- |\d+\. |\|)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that stand at the root of the repository."""
    for source, place in PROJECT_PAGES.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Return a page with its links into the repository resolved and its lists and tables set apart."""
    place = page.file.src_uri
    sources = {place: f"docs/{place}"} | {place: source for source, place in PROJECT_PAGES.items()}
    parts = re.split(r"(^```.*?^```)", markdown, flags=re.DOTALL | re.MULTILINE)
    for n in range(0, len(parts), 2):
        parts[n] = LINK.sub(lambda link: _resolve(link, sources[place], place), _set_blocks_apart(parts[n]))
    return "".join(parts)


def _resolve(link: re.Match[str], source: str, place: str) -> str:
    image, label, target = link.groups()
    if image or target.startswith("#") or re.match(r"[a-z]+:", target):
        return link[0]
    name, hash_sign, anchor = target.partition("#")
    path = os.path.normpath(os.path.join(os.path.dirname(source), name))
    within = PROJECT_PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
    if within is None:
        return label if path in label else f"{label} (`{path}`)"
    return f"[{label}]({os.path.relpath(within, os.path.dirname(place) or '.')}{hash_sign}{anchor})"


def _set_blocks_apart(text: str) -> str:
    lines: list[str] = []
    for line in text.splitlines(keepends=True):
        before = lines[-1].rstrip() if lines else ""
        opens = BLOCK_START.match(line)
        continues = before.startswith((" ", "- ", "|")) or re.match(r"\d+\. ", before)
        if opens and before and not continues and not before.startswith("#"):
            lines.append("\n")
        lines.append(line)
    return "".join(lines)
