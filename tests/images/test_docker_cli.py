"""Output of the docker program is passed on as it comes."""

from __future__ import annotations

import sys

import pytest

from lab.images.docker_cli import stream


def test_lines_of_a_build_come_as_they_are_printed_and_the_noise_is_left_out(tmp_path):
    seen = []
    program = f"print('one'); print('#2 sha256:{'0' * 64}'); print(); print('two'); raise SystemExit(3)"
    code, tail = stream([sys.executable, "-c", program], env={}, cwd=tmp_path, say=seen.append)
    assert (code, seen, tail) == (3, ["one", "two"], ["one", "two"])


def test_an_interrupted_build_ends_its_client(tmp_path):
    def interrupt(line):
        raise KeyboardInterrupt

    program = "import time; print('x', flush=True); time.sleep(600)"
    with pytest.raises(KeyboardInterrupt):  # and does not wait for the sleep: the suite's limit would strike
        stream([sys.executable, "-c", program], env={}, cwd=tmp_path, say=interrupt)
