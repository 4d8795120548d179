"""With the core alone installed, a command that needs more says what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
        ("diff trace.json trace.json", "numpy"),
        ("nsys summary trace.json", "numpy"),
        ("runs reap", "docker"),
    ],
)
def test_a_missing_package_is_named_with_its_extra_and_no_traceback(tmp_path, words, package):
    for name in ("trace.json", "trace.sqlite"):
        (tmp_path / name).write_text("{}")
    done = with_core_alone(words.split(), tmp_path)
    assert done.returncode == 4 and "Traceback" not in done.stderr
    assert f"{package!r} is not installed here" in done.stderr and "pip install" in done.stderr


@pytest.mark.data
def test_a_log_of_nixnan_is_read_with_the_core_alone(tmp_path, shared_data):
    log = shared_data / "nixnan/07_pytorch_erfinv_f64_complete.txt"
    parsed = with_core_alone(["nan", "parse", str(log)], tmp_path)
    compared = with_core_alone(["diff", str(log), str(log)], tmp_path)
    assert parsed.returncode == compared.returncode == 0
    assert f"{log}: complete." in parsed.stdout and "0 appeared" in compared.stdout


def with_core_alone(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CORE_ONLY, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PATH": "/usr/bin", "PYTHONPATH": str(ROOT)},
        timeout=900,
    )
