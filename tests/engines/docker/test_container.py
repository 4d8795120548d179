"""Starting a container on an engine that refuses, and reading its times."""

from __future__ import annotations

import pytest
import requests

pytest.importorskip("docker")
from docker.errors import APIError

from lab.core.gpu import Gpu
from lab.core.step import Step
from lab.engines.docker.client import Daemon
from lab.engines.docker.container import start
from lab.engines.docker.follow import moment
from lab.errors import EngineError, EngineLost, GpuError
from lab.images import spec as images
from lab.images.container import HostContext, container_spec
from tests.engines.docker.fixtures import CONTEXT

HOST = HostContext(run_dir="/out", hf_cache="/hf", cache="/c", uid=1, gid=1, infiniband=True)


SPEC = container_spec(
    images.load("cuda"),
    Step(name="s", argv=("true",), num_gpus=1),
    [Gpu(vendor="nvidia", index=0, uuid="GPU-0")],
    HOST,
)


def a_start(client) -> tuple[str, list[str]]:
    return start(Daemon(client=client, endpoint="e"), SPEC, name="n", labels={}, context=CONTEXT)


class Stingy:
    """An engine that may not lift the limit of locked memory."""

    def __init__(self) -> None:
        self.limits: list[list[str]] = []
        self.removed: list[str] = []

    def create_host_config(self, **given):
        self.limits.append([limit.name for limit in given["ulimits"]])
        return given

    def create_container(self, *_, **__):
        return {"Id": f"c{len(self.limits)}"}

    def start(self, container: str) -> None:
        if "memlock" in self.limits[-1]:
            raise APIError(
                "x",
                explanation="OCI runtime create failed: error setting rlimit type 8: operation not permitted",
            )

    def remove_container(self, container: str, **_) -> None:
        self.removed.append(container)


def test_a_refused_memlock_is_tried_again_without_and_said():
    engine = Stingy()
    container, warnings = start(
        Daemon(client=engine, endpoint="e"), SPEC, name="n", labels={}, context=CONTEXT
    )
    assert engine.limits == [["stack", "memlock"], ["stack"]]
    assert container == "c2" and engine.removed == ["c1"], "the one that did not start leaves nothing behind"
    assert len(warnings) == 1 and "locked memory" in warnings[0]


def test_another_error_is_not_tried_again():
    engine = Stingy()
    engine.start = lambda _: (_ for _ in ()).throw(APIError("x", explanation="nvml error: driver not loaded"))
    with pytest.raises(GpuError):
        a_start(engine)
    assert len(engine.limits) == 1 and engine.removed == ["c1"]


def test_a_start_without_an_answer_leaves_the_container_to_be_taken_up_again():
    engine = Stingy()
    engine.start = lambda _: (_ for _ in ()).throw(requests.exceptions.ReadTimeout("Read timed out."))
    with pytest.raises(EngineLost, match="c1 may still run"):
        a_start(engine)
    assert engine.removed == []


def test_the_daemons_times_are_read_with_all_their_decimals_and_zones():
    assert moment("2026-01-01T01:00:00.123456789+01:00").isoformat() == "2026-01-01T00:00:00.123456+00:00"
    assert moment("2026-01-01T00:00:00Z").microsecond == 0
    assert moment("2026-01-01T00:00:00.5Z").microsecond == 500_000
    with pytest.raises(EngineError):
        moment("yesterday")
