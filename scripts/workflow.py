"""Run a job of the code host's workflow here, step by step, in a clone of what is committed.

    python scripts/workflow.py lint smoke --set python=3.10
    python scripts/workflow.py image --set image=cpu

`run:` steps run as they stand, with GITHUB_ENV carried from step to step. Actions are replaced by what does
the same here, or said to be left out. `sudo` runs only the tree's own scripts and Python, and only as root:
settings of this machine stay as they are. Nothing is published. Exit code 1 when a step fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = ROOT / ".github/workflows"
EXPRESSION = re.compile(r"\$\{\{\s*([\w.-]+)\s*\}\}")
SUDO = """#!/bin/sh
case $1 in
  scripts/* | .venv/*) [ "$(id -u)" = 0 ] && exec "$@"; echo "not root, left out: sudo $*" >&2 ;;
  *) echo "not done to this machine: sudo $*" >&2 ;;
esac
"""
LEFT_OUT = {
    "docker/setup-buildx-action": "the builder that is here",
    "docker/login-action": "nothing is pushed from here",
}


def main() -> int:
    args = _arguments()
    jobs = read_jobs()
    given = dict(one.split("=", 1) for one in args.set)
    with tempfile.TemporaryDirectory(prefix="lab-workflow-") as folder:
        place = Place(Path(folder), args.tree, left_out=("--resolve-base",) if args.no_registry else ())
        results = {name: all(place.steps(name, jobs[name], given)) for name in args.jobs}
    for name, ok in results.items():
        print(f"{'✓' if ok else '✗'} {name}")
    return 0 if all(results.values()) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "jobs", nargs="+", metavar="JOB", choices=(known := list(read_jobs())), help=", ".join(known)
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a value of the matrix or an input"
    )
    parser.add_argument("--no-registry", action="store_true", help="build on bases by tag, without asking")
    parser.add_argument("--tree", type=Path, help="run in this folder instead of a clone")
    return parser.parse_args()


def read_jobs() -> dict[str, dict[str, Any]]:
    """Name -> the job; those that call another workflow are that workflow's job, `image`."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(WORKFLOWS.glob("*.yml")):
        jobs = yaml.safe_load(path.read_text())["jobs"]
        found |= {name: job for name, job in jobs.items() if "steps" in job}
    return found


class Place:
    """A clone, the programs that stand before the others on PATH, and what steps hand to later ones."""

    def __init__(self, folder: Path, tree: Path | None, left_out: tuple[str, ...] = ()) -> None:
        self.left_out = left_out  # words that no step is given
        self.tree = tree or folder / "tree"
        if tree is None:
            subprocess.run(["git", "clone", "--quiet", ROOT, self.tree], check=True)
        self.folder = folder
        self.programs = folder / "bin"
        self.programs.mkdir()
        (self.programs / "sudo").write_text(SUDO)
        (self.programs / "sudo").chmod(0o755)
        self.values: dict[str, str] = {}
        self.env: dict[str, str] = {}

    def steps(self, name: str, job: Mapping[str, Any], given: Mapping[str, str]) -> Iterator[bool]:
        """Run each step -> whether it went well; none after the first that did not."""
        matrix = {key: str(all_[0]) for key, all_ in job.get("strategy", {}).get("matrix", {}).items()}
        self.values = {
            "github.token": "none",
            "github.actor": "nobody",
            **{f"matrix.{key}": given.get(key, value) for key, value in matrix.items()},
            **{f"inputs.{key}": value for key, value in {"push": "", "image": "cpu", **given}.items()},
        }
        self.env = {
            "GITHUB_REF_NAME": given.get("tag", "v0.0.0"),
            "GITHUB_REPOSITORY_OWNER": given.get("owner", "Owner"),
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            **self._filled(job.get("env")),
        }
        for step in job["steps"]:
            title = str(step.get("name") or step.get("uses") or step["run"]).splitlines()[0]
            if not self.wanted(step.get("if")):
                print(f"- {name}: {title}: not for these inputs", flush=True)
                continue
            print(f"▸ {name}: {title}", flush=True)
            went = self._run(step["run"], self._filled(step.get("env"))) if "run" in step else self._use(step)
            yield went
            if not went:
                return

    def wanted(self, condition: str | None) -> bool:
        """Of `inputs.NAME`, compared with a word or not, joined by ||: all that the steps' conditions use."""
        if condition is None:
            return True
        return any(self._holds(part.strip()) for part in condition.split("||"))

    def _holds(self, part: str) -> bool:
        match = re.fullmatch(r"([\w.]+)(?:\s*==\s*'([^']*)')?", part)
        if match is None:
            raise SystemExit(f"a condition that this script cannot judge: {part}")
        value = self.values.get(match[1], "")
        return bool(value) if match[2] is None else value == match[2]

    def _filled(self, env: Mapping[str, Any] | None) -> dict[str, str]:
        return {name: self.fill(str(value)) for name, value in (env or {}).items()}

    def fill(self, text: str) -> str:
        return EXPRESSION.sub(lambda one: self.values.get(one[1], ""), text)

    def _run(self, script: str, env: Mapping[str, str]) -> bool:
        for word in filter(script.__contains__, self.left_out):
            print(f"  without {word}", flush=True)
            script = script.replace(word, "")
        handed = self.folder / "env"
        handed.write_text("")
        # As the code host runs it: bash -e, in a file.
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
            cwd=self.tree,
            env={**os.environ, **self.env, **env, "GITHUB_ENV": str(handed), "CI": "true"},
            stdin=subprocess.DEVNULL,
            check=False,
        )
        self.env |= dict(line.split("=", 1) for line in handed.read_text().splitlines() if "=" in line)
        return done.returncode == 0

    def _use(self, step: Mapping[str, Any]) -> bool:
        action = step["uses"].partition("@")[0]
        given = self._filled(step.get("with"))
        if action in LEFT_OUT or action == "actions/checkout":
            print(f"  {LEFT_OUT.get(action, f'in {self.tree}')}", flush=True)
            return True
        if action == "actions/setup-python":
            return self._python(given["python-version"])
        if action == "docker/bake-action":
            return self._bake(step, given)
        if action in ("actions/upload-artifact", "actions/download-artifact"):
            return self._artifact(action.endswith("upload-artifact"), given["path"])
        raise SystemExit(f"an action that this script does not know: {action}")

    def _python(self, version: str) -> bool:
        """A new environment of this version; fails where there is no such Python."""
        for name in (f"python{version}", "python"):
            program = shutil.which(name)
            if program and _version(program) == version:
                home = self.folder / f"python{version}"
                subprocess.run([program, "-m", "venv", home], check=True)
                self.env |= {"PATH": f"{self.programs}:{home}/bin:{os.environ['PATH']}"}
                return True
        print(f"  no CPython {version} on PATH", flush=True)
        return False

    def _bake(self, step: Mapping[str, Any], given: Mapping[str, str]) -> bool:
        """By the builder that is here, on a base that can be had here. A push becomes the image's own id."""
        target = given["targets"]
        if given.get("push") != "True":
            return self._run(f"LAB=lab scripts/images-here.sh {target}", {})
        asked = ["docker", "image", "inspect", "-f", "{{.Id}}", f"localhost/lab/{target}"]
        done = subprocess.run(
            asked, capture_output=True, text=True, env={**os.environ, **self.env}, check=False
        )
        print(f"  not pushed: {done.stdout.strip() or done.stderr.strip()}", flush=True)
        metadata = {target: {"containerimage.digest": done.stdout.strip()}}
        self.values[f"steps.{step['id']}.outputs.metadata"] = json.dumps(metadata)
        return done.returncode == 0

    def _artifact(self, up: bool, path: str) -> bool:
        """One folder for all: names are not told apart."""
        kept, here = self.folder / "artifacts" / Path(path).name, self.tree / path
        source, target = (here, kept) if up else (kept, here)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        return source.is_dir()


def _version(program: str) -> str:
    asked = [program, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
