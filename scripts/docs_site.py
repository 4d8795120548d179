"""The hook of mkdocs.yml: pages that lie outside docs/, and the options of every command.

README becomes the front page; examples/README.md, CONTRIBUTING.md and CHANGELOG.md are pages of their own.
A link to anything else outside docs/ (code, folders) becomes plain text.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
# page of the site -> the file it is made of
OUTSIDE = {
    "index.md": "README.md",
    "examples.md": "examples/README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")


def on_files(files, config):
    sys.path.insert(0, str(ROOT / "scripts"))  # mkdocs puts sys.path back after it has loaded a hook
    import commands

    for page, path in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / path).read_text()))
    files.append(File.generated(config, "options.md", content=commands.options_page()))
    return files


def on_page_markdown(markdown, page, config, files):
    """Links as seen from the file on disk -> links between pages; pictures of docs/ keep theirs."""
    source = OUTSIDE.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    pages = {path: name for name, path in OUTSIDE.items()}

    def relink(match: re.Match[str]) -> str:
        text, target = match.groups()
        if "://" in target or target.startswith("#"):
            return match.group()
        name, _, anchor = target.partition("#")
        path = str((ROOT / source).parent.joinpath(name).resolve().relative_to(ROOT))
        to_page = pages.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if to_page is None:
            return text
        return f"[{text}]({to_page}{'#' + anchor if anchor else ''})"

    return _LINK.sub(relink, markdown).replace("](docs/", "](")
