"""Three worlds meet only through files; these tests hold the walls so that nobody has to remember."""

from __future__ import annotations

import ast
import subprocess
import sys

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
WORKLOAD_ONLY = {"torch", "transformers", "triton"}
NOT_IN_WORKLOADS = {"docker", "pandas", "matplotlib", "jinja2", "openpyxl", "pyarrow", "rich"}


def imported(path) -> set[str]:
    """Every package a file imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def is_workload(path) -> bool:
    """A room's files workload*.py and model*.py, and all files of its packages workload/ and model/."""
    if not path.is_relative_to(ROOT / "lab" / "rooms"):
        return False
    inside = path.relative_to(ROOT / "lab" / "rooms").parts[1:]
    return path.name.startswith(("workload", "model")) or bool({"workload", "model"} & set(inside[:-1]))


FILES = sorted((ROOT / "lab").rglob("*.py"))


def test_a_rooms_package_model_counts_as_workload():
    rooms = ROOT / "lab" / "rooms"
    assert is_workload(rooms / "semicrf" / "model" / "kernels.py")
    assert is_workload(rooms / "sweep" / "workload_host.py")
    assert not is_workload(rooms / "semicrf" / "plan.py")
    assert not is_workload(rooms / "model" / "plan.py"), "a room may be called model"
    assert not is_workload(ROOT / "lab" / "trace" / "model" / "tables.py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_torch_stays_in_workloads_and_the_analysis_stack_out_of_them(path):
    forbidden = NOT_IN_WORKLOADS if is_workload(path) else WORKLOAD_ONLY
    assert not imported(path) & forbidden


def test_docker_is_known_to_its_engine_only():
    users = {p.relative_to(ROOT).as_posix() for p in FILES if "docker" in imported(p)}
    assert all(user.startswith("lab/engines/docker") for user in users)


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
    users = [p.relative_to(ROOT).as_posix() for p in FILES if '"manifest.json"' in p.read_text()]
    assert users == ["lab/core/run.py"]
