"""Whether a command can start at all, seen before its first trial. Looks at files and starts nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lab.errors import MissingError, not_here

PYTHON = re.compile(r"python(\d+(\.\d+)*)?t?\Z")
SHELLS = ("sh", "bash", "dash")
NO_PATH = ("dash", "busybox")  # shells that look for a script in their folder only
PROGRAM = b"\x7fELF"  # how a program of the system begins; a wrapper script may change folder before it runs
PER_TRIAL = re.compile(r"\{(seed|trial)\}")  # a word with one of these is another file in every trial


def refuse_missing(words: Sequence[str], env: Mapping[str, str], cwd: Path, cell: str = "") -> None:
    """Raises MissingError where the program, or the script that an interpreter is to run, is not there."""
    of_cell = f" of cell {cell!r}" if cell else ""
    if not cwd.is_dir():
        raise MissingError("the folder in which the command runs is not there", location=cwd)
    if PER_TRIAL.search(words[0]):
        return
    folders = (env.get("PATH") or os.defpath).split(os.pathsep)
    problem = why_not_run(words[0], folders, cwd)
    if problem:
        raise MissingError(
            f"the command{of_cell} cannot start: {problem}",
            location=words[0] if "/" in words[0] else f"PATH={os.pathsep.join(folders)}",
            fix="check the name, or give its path",
        )
    script = script_of(words)
    if script is None or PER_TRIAL.search(script) or (cwd / script).exists():
        return
    interpreter = _interpreter(words[0], folders, cwd)
    if interpreter is None:
        return
    is_shell = not PYTHON.match(Path(words[0]).name)
    if is_shell and "/" not in script and interpreter.name not in NO_PATH and _on_path(script, folders, cwd):
        return  # bash looks there, too
    path = Path(script) if cwd == Path.cwd() else cwd / script
    raise not_here(f"the script{of_cell} is not there", path)


def _interpreter(program: str, folders: Sequence[str], cwd: Path) -> Path | None:
    """The file that runs, links followed; None where it is a script, which may do anything before."""
    candidates = [cwd / program] if "/" in program else _on_path(program, folders, cwd)
    runs = next((candidate.resolve() for candidate in candidates if os.access(candidate, os.X_OK)), None)
    if runs is None:
        return None
    try:
        with runs.open("rb") as file:
            return runs if file.read(len(PROGRAM)) == PROGRAM else None
    except OSError:  # it may be run and not read
        return None


def differs_per_trial(words: Sequence[str]) -> bool:
    """Whether each trial has a program or script of its own, of which one may be there and another not."""
    return any(PER_TRIAL.search(one) for one in (words[0], script_of(words) or ""))


def why_not_run(program: str, folders: Sequence[str], cwd: Path) -> str:
    """Why the system would not run this program; "": it would try."""
    if not program:
        return "its name is empty"
    if "/" not in program:
        candidates = _on_path(program, folders, cwd)
        if not candidates:
            return f"no program {program!r} on PATH"
        return (
            ""
            if any(os.access(candidate, os.X_OK) for candidate in candidates)
            else f"{candidates[0]} is not executable"
        )
    path = cwd / program
    if not path.exists():
        return f"no file {program!r}"
    if path.is_dir():
        return f"{program!r} is a folder"
    return "" if os.access(path, os.X_OK) else f"{program!r} is not executable (chmod +x)"


def _on_path(name: str, folders: Sequence[str], cwd: Path) -> list[Path]:
    return [path for folder in folders if (path := cwd / (folder or ".") / name).is_file()]


def script_of(words: Sequence[str]) -> str | None:
    """The file that `python`, `sh` or `bash` is told to run; None where there is none, or it is not known."""
    name, words_after = Path(words[0]).name, iter(words[1:])
    if PYTHON.match(name):
        return _script(words_after, ends="cmVh?", takes="WX", long=("--check-hash-based-pycs",))
    return (
        _script(words_after, ends="cs", takes="oO", long=("--rcfile", "--init-file"))
        if name in SHELLS
        else None
    )


def _script(words: Iterator[str], *, ends: str, takes: str, long: Sequence[str]) -> str | None:
    """The first word that is no option. ends: letters that leave no script; takes: those with a value."""
    for word in words:
        if word == "--":
            return next(words, None)
        if word.startswith("--"):
            if word not in long:
                return None  # such as --version
            next(words, None)
            continue
        if word[:1] not in ("-", "+") or len(word) == 1:
            return None if word == "-" else word
        letters = word[1:]
        position = next((index for index, letter in enumerate(letters) if letter in ends + takes), None)
        if position is None:
            continue
        if letters[position] in ends:
            return None
        if position == len(letters) - 1:
            next(words, None)
    return None


def loses_arguments(words: Sequence[str]) -> bool:
    """Whether words after these reach no program: `sh -c TEXT` keeps them as $0, $1... and may read none."""
    if Path(words[0]).name not in SHELLS:
        return False
    words_after = iter(words[1:])
    for word in words_after:
        if re.match(r"-[a-z]*c\Z", word):
            text = next(words_after, "$@")
            return not re.search(r"\$(?:[@*0-9]|\{[@*0-9])", text)
        if not word.startswith(("-", "+")):
            return False  # a script, which gets them
        if re.match(r"[-+]\w*[oO]\Z", word):
            next(words_after, None)  # -o pipefail
    return False
