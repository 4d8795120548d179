"""What starting a command costs in imports. The walls between layers are import-linter's (`make lint`)."""

from __future__ import annotations

import re
import subprocess
import sys
from re import fullmatch

import pytest

from tests.conftest import ROOT

HEAVY = {
    "torch",
    "numpy",
    "pandas",
    "polars",
    "docker",
    "matplotlib",
    "pyarrow",
    "jinja2",
    "openpyxl",
    "transformers",
}


def modules_after(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint(*sorted(sys.modules), file=sys.__stdout__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.splitlines()[-1].split()}


def test_help_and_plans_import_nothing_heavy():
    run = "from lab.cli.main import main\ntry: main({!r})\nexcept SystemExit: pass"
    assert not modules_after(run.format(["--help"])) & (HEAVY | {"msgspec", "yaml", "rich"})
    assert not modules_after(run.format(["run", "--help"])) & HEAVY
    plan = ["run", "--image", "rocm70", "--dry-run", "--json", "sweep", "-c", "28"]
    assert not modules_after(run.format(plan)) & HEAVY


def test_every_module_that_a_command_loads_by_name_is_within_a_wall():
    """import-linter follows imports, not names in LazyGroup: each such module is a source of its own."""
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    walls = next(one for one in contracts if one["id"] == "workload-world")["source_modules"]
    text = "".join(path.read_text() for path in (ROOT / "lab").rglob("*.py"))
    loaded = set(re.findall(r'"(lab\.rooms\.[\w.]+):\w+"', text))
    assert loaded
    outside = {
        name for name in loaded if not any(fullmatch(wall.replace("*", r"\w+"), name) for wall in walls)
    }
    assert outside == set()


def test_every_folder_with_code_is_a_package():
    """import-linter does not see a folder without __init__.py; Python imports it all the same."""
    folders = {path.parent for path in (ROOT / "lab").rglob("*.py")}
    assert {folder for folder in folders if not (folder / "__init__.py").exists()} == set()


def test_there_is_no_python_in_docker_where_it_would_shadow_the_sdk():
    assert not list((ROOT / "docker").rglob("*.py"))


def test_only_run_py_knows_the_manifests_name():
    files = sorted((ROOT / "lab").rglob("*.py"))
    users = [p.relative_to(ROOT).as_posix() for p in files if '"manifest.json"' in p.read_text()]
    assert users == ["lab/core/run.py"]
