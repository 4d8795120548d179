"""With the core alone installed, a command that needs more says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT

CORE_ONLY = """
import sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"numpy", "pandas", "docker", "torch", "matplotlib"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Nothing())
from lab.cli.main import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    "words, package",
    [
        ("nan parse log.nixnan", "pandas"),
        ("nan diff log.nixnan log.nixnan", "pandas"),
        ("nsys summary trace.json", "numpy"),
        ("nsys scrub trace.sqlite out.sqlite", "numpy"),
        ("runs reap", "docker"),
    ],
)
def test_a_missing_package_is_named_with_its_extra_and_no_traceback(tmp_path, words, package):
    for name in ("log.nixnan", "trace.json", "trace.sqlite"):
        (tmp_path / name).write_text("{}")
    done = subprocess.run(
        [sys.executable, "-c", CORE_ONLY, *words.split()],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PATH": "/usr/bin", "PYTHONPATH": str(ROOT)},
        timeout=900,
    )
    assert done.returncode == 4 and "Traceback" not in done.stderr
    assert f"{package!r} is not installed here" in done.stderr and "pip install" in done.stderr
