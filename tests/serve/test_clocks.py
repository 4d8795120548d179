"""Clocks of a run from the samples beside its steps."""

from __future__ import annotations

import pytest

from lab.power.sampling import COLUMNS, SAMPLES
from lab.serve.index import Index
from lab.serve.web.differences import changed, clocks_of
from tests.serve.made import DAY, write_run


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def sample(folder, step, rows):
    """rows: (SM MHz, memory MHz, W, °C, throttle bits)."""
    lines = [f"{at},0,GPU-1,{','.join(str(cell) for cell in row)}" for at, row in enumerate(rows)]
    (folder / "steps" / step / SAMPLES).write_text("\n".join([",".join(COLUMNS), *lines]) + "\n")


def facts(folder):
    (row,) = Index(folder.parent, cache=False).refresh()
    return {name: value for (_, name), value in clocks_of(folder, row).items()}


def test_medians_are_of_the_samples_in_which_the_gpus_worked(tmp_path):
    folder = write_run(tmp_path / "runs", "a")
    idle = [(345, 1593, 90, 30, 1)] * 9
    sample(folder, "step0", [*idle, (1980, 2619, 690, 61, 4), (1979, 2619, 700, 63, 0)])
    sample(folder, "step1", [*idle, (1981, 2619, 702, 64, "")])
    assert facts(folder) == {
        "SM clock": "about 1,980 MHz",
        "memory clock": "about 2,625 MHz",
        "power": "about 700 W",
        "temperature": "about 65 °C",
        "slowed by": "software power cap",
    }


def test_a_gpu_that_was_never_busy_and_lines_that_were_cut(tmp_path):
    folder = write_run(tmp_path / "runs", "a")
    sample(
        folder, "step0", [(345, "", 90, 30, 1), (345, "", 90, 30, 1), ("x", 1, 1, 1, 1), (1e300, 1, 1, 1, 0)]
    )
    with (folder / "steps" / "step0" / SAMPLES).open("a") as file:
        file.write("99,0,GPU-1,nan,1,1,1,0\n100,0,GPU-1,19")
    found = facts(folder)
    assert found["SM clock"] == "about 345 MHz" and "memory clock" not in found
    assert found["slowed by"] == "nothing seen"


def test_without_samples_nothing_is_said(tmp_path):
    assert facts(write_run(tmp_path / "runs", "a")) == {}


def test_a_link_in_their_place_is_not_read(tmp_path):
    folder = write_run(tmp_path / "runs", "a")
    sample(folder, "step0", [(1980, 2619, 690, 61, 0)])
    (folder / "steps/step0" / SAMPLES).rename(tmp_path / "elsewhere.csv")
    (folder / "steps/step0" / SAMPLES).symlink_to(tmp_path / "elsewhere.csv")
    assert facts(folder) == {}


def test_a_lower_clock_is_among_what_differs_between_runs(tmp_path):
    for number, clock in enumerate([1980, 1979, 1410]):
        folder = write_run(tmp_path / "runs", f"s{number}", at=DAY.replace(day=1 + number))
        sample(folder, "step0", [(clock, 2619, 690, 61, 8 if clock < 1500 else 0)])
    index = Index(tmp_path / "runs", cache=False)
    slow, fast, same = index.refresh()

    def differences(base, head):
        fields = changed(base, head, lambda row: clocks_of(index.path(row), row))
        return {field.name: field.values for field in fields}

    assert differences(fast, slow) == {
        "SM clock": ["about 1,980 MHz", "about 1,410 MHz"],
        "slowed by": ["nothing seen", "hardware slowdown"],
    }
    assert differences(same, fast) == {}, "a megahertz is below a driver's step"
