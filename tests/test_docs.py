"""What the documentation names is there: pages, anchors, files, commands and options, targets of make."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import click
import pytest

import lab
from lab.cli.main import cli

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"), *ROOT.glob("*/README.md")]
)
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
# Images on an engine, and what a build makes.
MADE = {f"lab/{name}" for name in ("cpu", "cpu-torch", "cuda", "pascal", "rocm70", "_native")}
FOLDERS = "bench|compose|docker|docs|images|lab|scripts|tests"
# What comes after these is not lab's.
_ENDS = ("--", "|", ">", "<", "&&", "...", "#", ";")


def without_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)


def code(text: str) -> list[str]:
    """Lines of code blocks, and inline code."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S)
    inline = re.findall(r"`([^`\n]+)`", without_blocks(text))
    return [line for block in blocks for line in block.splitlines()] + inline


def anchors(page: Path) -> set[str]:
    """As the code host makes them from headings."""
    headings = re.findall(r"^#+ (.+)$", without_blocks(page.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-") for text in headings}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_link_leads_to_a_file_and_its_anchor_to_a_heading(page):
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            dead.append(target)
    assert dead == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_path_of_the_project_is_there(page):
    gone = []
    for span in code(page.read_text()):
        for word in re.findall(rf"(?<![\w./-])(?:{FOLDERS})/[\w./*-]*", span):
            path = word.rstrip("./")
            if path in MADE or re.search(r"\b[A-Z]+\b", path.removesuffix("README.md")):
                continue
            if not any(ROOT.glob(path)) and not any(page.parent.glob(path)):
                gone.append(word)
    assert gone == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_no_sentence_touches_a_table_whose_row_it_would_become(page):
    lines = without_blocks(page.read_text()).splitlines()
    pairs = pairwise(lines)
    assert [
        after for row, after in pairs if row.startswith("|") and after and not after.startswith("|")
    ] == []


def test_every_page_can_be_reached_from_the_readme():
    seen, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen:
            continue
        seen.add(page)
        links = re.findall(r"\]\(([^)\s#]+\.md)[^)]*\)", page.read_text())
        todo += [there for link in links if (there := (page.parent / link).resolve()).exists()]
    assert {page for page in PAGES if page.parent.name == "docs"} <= seen
    index = set(re.findall(r"\]\(docs/([\w.-]+)\)", (ROOT / "README.md").read_text()))
    assert {page.name for page in ROOT.glob("docs/*.md")} <= index, "the README is the index of docs/"


def problem(line: str) -> str:
    """What is wrong with a line that begins with `lab`; "" if its commands and options are there."""
    try:
        words = shlex.split(re.split(r"\s+#\s", line)[0])
    except ValueError:
        words = line.split()
    words = [word.strip("[](),") for word in words[1:]]
    command: click.Command = cli
    while words:
        word = words.pop(0)
        if word in _ENDS or word.startswith(_ENDS[1:]):
            break
        if word.startswith("-") and len(word) > 1:
            name, _, value = word.partition("=")
            known = {form: one for one in command.params for form in (*one.opts, *one.secondary_opts)}
            for form in name.split("|"):
                if form not in (*known, "--help", "-h"):
                    return f"{command.name} has no {form}: {line}"
            option = known.get(name)
            if isinstance(option, click.Option) and not option.is_flag and not value:
                del words[: option.nargs]
        elif isinstance(command, click.Group):
            one_of = [command.get_command(click.Context(command), name) for name in word.split("|")]
            below = one_of[0] if all(one_of) else None
            if below is None and command.name == "ranks":  # its first word may be a folder
                below = command.get_command(click.Context(command), "account")
            if below is None and not PLACE.fullmatch(word):
                return f"{command.name} has no {word}: {line}"
            command = below or command
    return ""


PLACE = re.compile(r"[A-Z]+")  # to be filled in


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "commands.md"], ids=str)
def test_every_command_and_option_of_lab_is_there(page):
    lines = [line.strip() for span in code(page.read_text()) for line in re.split(r"\s{2,}(?=lab )", span)]
    assert [found for line in lines if re.match(r"lab [a-z-]", line) and (found := problem(line))] == []


def test_every_target_of_make_is_there():
    targets = set(re.findall(r"^([\w-]+)(?: [\w-]+)*:", (ROOT / "Makefile").read_text(), re.M))
    phony = " ".join(re.findall(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.M)).split()
    named = {
        (page.name, word)
        for page in PAGES
        for span in code(page.read_text())
        for word in re.findall(r"(?<![\w-])make ([a-z][\w-]*)", span)
    }
    assert {one for one in named if one[1] not in targets | set(phony)} == set()


def test_the_reference_of_commands_is_what_the_program_says():
    made = subprocess.run(
        [sys.executable, ROOT / "scripts/commands.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert (ROOT / "docs/commands.md").read_text() == made.stdout, (
        "python scripts/commands.py > docs/commands.md"
    )


def test_the_site_builds_with_every_link_checked(tmp_path):
    pytest.importorskip("mkdocs")
    argv = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", tmp_path / "site"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    nav = (ROOT / "mkdocs.yml").read_text()
    assert [page.name for page in sorted(ROOT.glob("docs/*.md")) if page.name not in nav] == []


def words(page: Path) -> int:
    """As `wc -w` counts."""
    return len(page.read_bytes().split())


def test_the_docs_stay_short():
    assert sum(words(page) for page in ROOT.glob("docs/*.md")) <= 28_000
    assert words(ROOT / "CHANGELOG.md") <= 1_500


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_a_paragraph_has_at_most_100_words(page):
    text = without_blocks(page.read_text())
    blocks = re.split(r"\n\s*\n|\n(?=[-|#>] ?|\d+\. )", text)
    assert [block[:60] for block in blocks if not block.startswith("|") and len(block.split()) > 100] == []


def test_the_version_is_one():
    version = lab.__version__
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## {version}\n" in (ROOT / "CHANGELOG.md").read_text()
