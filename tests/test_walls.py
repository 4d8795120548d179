"""What starting a command costs in imports. The walls between layers are import-linter's (`make lint`)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from re import fullmatch

import pytest

from lab.errors import BLAS_THREADS, needs
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
    "starlette",
    "uvicorn",
    "duckdb",
    "mcp",
    "transformers",
}


def modules_after(code: str) -> set[str]:
    return {name.split(".")[0] for name in all_modules_after(code)}


def all_modules_after(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint(*sorted(sys.modules), file=sys.__stdout__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_help_and_plans_import_nothing_heavy():
    run = "from lab.cli.main import main\ntry: main({!r})\nexcept SystemExit: pass"
    assert not modules_after(run.format(["--help"])) & (HEAVY | {"msgspec", "yaml", "rich"})
    assert not modules_after(run.format(["run", "--help"])) & HEAVY
    plan = ["run", "--image", "rocm70", "--dry-run", "--json", "sweep", "-c", "28"]
    assert not modules_after(run.format(plan)) & HEAVY


TABLES = {"numpy", "pandas", "pyarrow"}
READING = {
    "lab inspect {kernels}": {"numpy"},
    "lab nsys summary {kernels}": {"numpy"},
    "lab nsys summary {kernels} -o {out}": {"numpy"},
    "lab nsys stats {kernels}": {"numpy"},
    "lab diff {kernels} {kernels}": {"numpy"},
    "lab nan parse {log}": set[str](),
    "lab gemm merge {ranks} -o {out}": {"numpy"},
    "lab gemm report {rank} -o {out}": TABLES,
    "lab kernels unique {kernels} -o {out}": TABLES,
    "lab kernels unique --launches {kernels} -o {out}": TABLES,
}


@pytest.mark.data
@pytest.mark.parametrize("command", READING)
def test_a_command_loads_only_what_it_uses(command, tmp_path, shared_data):
    ranks = shared_data / "sweep_h200/256thread/nccl_28channels"
    words = {
        "kernels": shared_data / "kernels_h200/bloom560m_generate.json.gz",
        "log": shared_data / "nixnan/03b_quickdemo_short_complete.txt",
        "ranks": ranks,
        "rank": min(ranks.rglob("*.json.gz")),
        "out": tmp_path,
    }
    arguments = [word.format(**words) for word in command.split()[1:]]
    code = f"from lab.cli.main import main\ntry: main({arguments!r})\nexcept SystemExit: pass"
    assert modules_after(code) & HEAVY <= READING[command]


@pytest.mark.data
def test_a_report_of_one_trace_loads_no_pictures(tmp_path, shared_data):
    words = [str(shared_data / "kernels_h200/bloom560m_generate.json.gz"), "-o", str(tmp_path), "-w", "1"]
    run = f"from lab.cli.main import main\ntry: main({['gemm', 'report', *words]!r})\nexcept SystemExit: pass"
    assert "PIL" not in all_modules_after(run)
    assert list(tmp_path.rglob("*.xlsx"))


def test_numpy_starts_with_one_blas_thread_and_no_step_inherits_it(monkeypatch):
    monkeypatch.delenv(BLAS_THREADS, raising=False)
    with needs("analysis"):
        assert os.environ[BLAS_THREADS] == "1"
    assert BLAS_THREADS not in os.environ
    monkeypatch.setenv(BLAS_THREADS, "3")
    with needs("analysis"):
        assert os.environ[BLAS_THREADS] == "3"
    assert os.environ[BLAS_THREADS] == "3"


def test_every_module_that_a_command_loads_by_name_is_within_a_wall():
    """import-linter follows imports, not names in LazyGroup: each such module is a source of its own."""
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    walls = next(one for one in contracts if one["id"] == "workload-world")["source_modules"]
    text = "".join(path.read_text() for path in (ROOT / "lab").rglob("*.py"))
    loaded = set(re.findall(r'"(lab\.rooms\.[\w.]+):\w+"', text))
    # A program that a step runs is a workload; it loads workloads by name, too.
    loaded = {name for name in loaded if not {"workload", "watch"} & set(name.split("."))}
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


def test_one_module_alone_knows_the_manifests_name():
    files = sorted((ROOT / "lab").rglob("*.py"))
    users = [p.relative_to(ROOT).as_posix() for p in files if '"manifest.json"' in p.read_text()]
    assert users == ["lab/core/manifest.py"]
