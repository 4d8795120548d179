"""What an output says of a command that never began: no script, no module, an option it does not have.

Only what is plain is taken for it, in outputs of a few lines: a program that had begun has failed.
"""

from __future__ import annotations

import re

from lab.core.words import printable

NOT_THERE = {126: "not executable", 127: "a command is not found"}  # by POSIX, of every shell
LONGEST = 200  # letters of a line that are kept
FEW_LINES = 40  # a command that printed more had begun
AFTER = 6  # lines that a message may have below a traceback
TRACEBACK = "Traceback (most recent call last"
HARMLESS = ("Exception ignored", "Error in atexit", "--- Logging error", "Task exception was never")
HIDDEN = "although its output ends in an error"  # how the reason of such a pass begins
SHELL = r"(?:\S*/)?(?:ba|da|k|z|a)?sh: (?:line )?(?:\d+: )?"
NO_SCRIPT = (
    r"\S*python\S*: can't open file '.*': \[Errno \d+\].*"
    r"|\S*python\S*: (?:No module named \S|Error while finding module specification for "
    r"|can't find '__main__' module in ).*"
    rf"|{SHELL}(?:cannot open|[Cc]an't open) .+"
    r"|Can't open perl script .+"
    r"|Error: (?:Unable to access jarfile|Could not find or load main class) .*"
    r"|slurmstepd: error: execve\(\): .*"
)
AT_THE_END = (
    r"ModuleNotFoundError: No module named .*"
    r"|ImportError: .*: cannot open shared object file: .*"
    r"|make(?:\[\d+\])?: \*\*\* (?:No rule to make target .*|No targets .*|.* Error 12[67])"
    r"|(?:\S+: )?error while loading shared libraries: .*"
)
_NO_SCRIPT, _AT_THE_END = re.compile(NO_SCRIPT), re.compile(AT_THE_END)
_NOT_FOUND = re.compile(rf"{SHELL}.+: (?:command )?not found|{NO_SCRIPT}")
_SYNTAX = re.compile(r"(?:SyntaxError|IndentationError|TabError): .*")  # of the script itself: no traceback
_USAGE = re.compile(r"(?:\S+: )?[Ee]rror: .+")  # of argparse and click, below a line that begins with usage:
_TRY_HELP = re.compile(r"Try ['`‘].+ --help['’`].* for (?:more information|help)\.")
_OF_CHILD = re.compile(r"(?:exitcode\s*:|exit status|return code =)\s*(\d+)")  # of launchers


class Signs:
    """Takes the lines of an output that are not empty, in their order."""

    def __init__(self) -> None:
        self.first_line = self.last_line = ""
        self._lines = 0
        self._usage = False
        self._script = ""  # the first line that names a script or module which is not there
        self._child: int | None = None  # the exit code that a launcher names after it
        self._in_frames, self._raised, self._raised_at = False, "", 0  # the last traceback's exception

    def line(self, line: str) -> None:
        self._lines += 1
        self._follow_traceback(line)
        self.first_line, self.last_line = self.first_line or line[:LONGEST], line[:LONGEST]
        if self._lines > FEW_LINES and not self._script:
            return
        self._usage = self._usage or line[:6].lower() == "usage:"
        if self._script:
            if named := _OF_CHILD.search(line[:LONGEST]):
                self._child = int(named[1])
        elif _NO_SCRIPT.fullmatch(line[:LONGEST].strip()):
            self._script = line[:LONGEST].strip()

    def _follow_traceback(self, line: str) -> None:
        if line.startswith(TRACEBACK):
            self._in_frames = not self.last_line.startswith(HARMLESS)
        elif self._in_frames and not line[0].isspace():
            self._in_frames, self._raised, self._raised_at = False, line[:LONGEST], self._lines

    @property
    def hidden(self) -> str:
        """The error with which the output ends, or which is all of it: an exit code of 0 then says little, as
        that of a pipe."""
        line = self.last_line.strip()
        alone = self._lines == 1 and _NOT_FOUND.fullmatch(line)
        begins = self.first_line.startswith("  File ") or self.first_line[:6].lower() == "usage:"
        if self._raised and self._lines - self._raised_at <= AFTER:
            line = self._raised
        elif not alone and not (begins and self._cannot_begin(line, 2)):
            return ""
        return f"{HIDDEN}: {printable(line)}"

    def why(self, exit_code: int) -> str:
        """What says that the command, or something it starts, is not there or cannot begin; "": nothing."""
        line = self.last_line.strip()
        if exit_code in NOT_THERE:
            return f"exit code {exit_code} ({NOT_THERE[exit_code]}){f': {printable(line)}' if line else ''}"
        if exit_code == 0:
            return ""
        if self._script and (self._lines <= FEW_LINES or self._child in (1, 2)):
            return printable(self._script)
        return printable(line) if self._cannot_begin(line, exit_code) else ""

    def _cannot_begin(self, line: str, exit_code: int) -> bool:
        """Whether the last of a few lines says that a module, an option or the like is not there."""
        if self._lines > FEW_LINES:
            return False
        misused = exit_code == 2 and self._usage and _USAGE.fullmatch(line)
        syntax = self.first_line.startswith("  File ") and _SYNTAX.fullmatch(line)
        return bool(misused or syntax or _AT_THE_END.fullmatch(line) or _TRY_HELP.fullmatch(line))
