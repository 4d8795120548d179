"""What starting a command costs in imports. The walls between layers are import-linter's (`make lint`)."""

from __future__ import annotations

import subprocess
import sys

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


def test_there_is_no_python_in_docker_where_it_would_shadow_the_sdk():
    assert not list((ROOT / "docker").rglob("*.py"))


def test_only_run_py_knows_the_manifests_name():
    files = sorted((ROOT / "lab").rglob("*.py"))
    users = [p.relative_to(ROOT).as_posix() for p in files if '"manifest.json"' in p.read_text()]
    assert users == ["lab/core/run.py"]
