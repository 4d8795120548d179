"""A step's identity is what it measures; its paths stay in the run folder."""

from __future__ import annotations

import pytest

from lab.core.step import Step
from lab.errors import ConfigError

STEP = Step(name="s", argv=("python", "x.py"), num_gpus=8, env={"A": "1", "B": "2"})
CHANGED = {
    "argv": ("python", "y.py"),
    "env": {"A": "1", "B": "3"},
    "num_gpus": 4,
    "nodes": 2,
    "tools": ("nsys",),
}
NOT_MEASURED = {
    "name": "t",
    "folder": "f",
    "timeout_s": 5.0,
    "stall_timeout_s": 5.0,
    "settle_s": 1.0,
    "expects": ("x",),
    "logs": ("l",),
    "labels": {"threads": 1},
}


def changed(**fields) -> Step:
    base = {name: getattr(STEP, name) for name in Step.__struct_fields__}
    return Step(**{**base, **fields})


@pytest.mark.parametrize("field", CHANGED)
def test_what_is_measured_changes_the_fingerprint(field):
    assert changed(**{field: CHANGED[field]}).fingerprint() != STEP.fingerprint()


def test_the_number_of_nodes_is_no_number_of_gpus():
    prints = [changed(num_gpus=gpus, nodes=nodes).fingerprint() for gpus in (2, 4) for nodes in (1, 2, 4)]
    assert len(set(prints)) == 6


@pytest.mark.parametrize("field", NOT_MEASURED)
def test_what_only_surrounds_a_step_leaves_the_fingerprint(field):
    assert changed(**{field: NOT_MEASURED[field]}).fingerprint() == STEP.fingerprint()


def test_context_counts_and_the_order_of_variables_does_not():
    assert STEP.fingerprint("image") != STEP.fingerprint() != STEP.fingerprint("image", "config")
    assert changed(env={"B": "2", "A": "1"}).fingerprint() == STEP.fingerprint()


def test_a_recorded_fingerprint_stays_what_it_is():
    """Manifests of earlier runs hold it: `--resume` compares."""
    assert STEP.fingerprint("c") == "9ed02920c262dd3d"


@pytest.mark.parametrize("field", ["folder", "expects", "logs"])
@pytest.mark.parametrize("path", ["/etc", "../x", "a/../../x", "a\0b"])
def test_a_path_that_leaves_the_run_folder_is_refused(field, path):
    with pytest.raises(ConfigError, match=r"step 's': .* leaves the run folder"):
        changed(**{field: path if field == "folder" else (path,)})


@pytest.mark.parametrize("name", ["", "A", "-a", "a b", "a" * 65, "a/b", "a\n"])
def test_a_name_that_is_no_file_name_is_refused(name):
    with pytest.raises(ConfigError, match="step name"):
        changed(name=name)
