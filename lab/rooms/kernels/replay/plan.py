"""The plan of a replay: one step that reads nothing but the replay plan in the run folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import msgspec

from lab.core.plan import Plan, Site
from lab.core.step import Step
from lab.rooms.kernels.replay.args import ReplayPlan
from lab.rooms.kernels.replay.files import PLAN_FILE, RAW_FILE

STEP = "replay"


@dataclass(frozen=True)
class ReplayOptions:
    """How to replay, as the flags of `lab run kernels replay` say."""

    mode: str
    repeats: int
    pace: str


def replay_run(plan: ReplayPlan, options: ReplayOptions, site: Site) -> Plan:
    source = plan.origin.run or plan.origin.trace
    return Plan(
        steps=(_step(options, site),),
        config={"what": "replay", **asdict(options), "source": source},
        inputs={PLAN_FILE: msgspec.json.encode(plan).decode()},
        notes=(*plan.notes, *_notes(plan, site)),
    )


def _step(options: ReplayOptions, site: Site) -> Step:
    module = "lab.rooms.kernels.workload.replay"
    files = ("--plan", PLAN_FILE, "--out", STEP)
    knobs = ("--mode", options.mode, "--repeats", str(options.repeats), "--pace", options.pace)
    return Step(
        name=STEP,
        folder=STEP,
        num_gpus=1 if site.gpus else 0,
        expects=(RAW_FILE,),
        labels={"mode": options.mode},
        argv=("python", "-m", module, *files, *knobs),
    )


def _notes(plan: ReplayPlan, site: Site) -> list[str]:
    if site.gpus or not plan.origin.has_kernels:
        return []
    return ["no GPU here: arguments are rebuilt and the ops called on the CPU, which proves no kernel"]
