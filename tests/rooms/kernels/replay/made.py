"""A plan and what its replay saw, every figure known."""

from __future__ import annotations

from lab.rooms.kernels.replay.args import (
    Call,
    CallRun,
    Forward,
    Launch,
    Origin,
    RawReplay,
    ReplayPlan,
    Signature,
    SignatureRun,
)

GEMM = Launch("gemm", grid=(4, 1, 1), block=(128, 1, 1), smem_bytes=1024)


REDUCE = Launch("splitKreduce", grid=(2, 1, 1), block=(64, 1, 1))


FILL = Launch("Memset (Device)", "memset", bytes=4)


def a_plan(**more):
    signatures = (
        Signature(sig_id="a", op="aten::mm", launches=(GEMM, REDUCE)),
        Signature(sig_id="b", op="aten::zero_", launches=(FILL,)),
    )
    calls = (
        Call(0, 0, (10.0, 2.0), (0.0, 10.0)),
        Call(0, 1, (12.0, 2.0), (20.0, 32.0)),
        Call(1, 1, (1.0,), (40.0,)),
    )
    forwards = (Forward("prefill", "prefill", 100.0, 12.0), Forward("decode_1", "decode", 90.0, 15.0))
    origin = Origin(device_name="NVIDIA H200", num_sms=132)
    return ReplayPlan(origin=origin, forwards=forwards, signatures=signatures, calls=calls, **more)


def a_raw(launches=(GEMM, REDUCE), times=((11.0, 2.0), (13.0, 2.0)), device="cuda", status="ran"):
    runs = (
        SignatureRun(sig_id="a", status=status, launches=launches, dur_us=times),
        SignatureRun(sig_id="b", status="ran", launches=(FILL,), dur_us=((1.0,),)),
    )
    calls = (
        CallRun(0, 0, ((11.0, 2.0), (11.0, 2.0))),
        CallRun(1, 0, ((12.0, 3.0), (14.0, 1.0))),
        CallRun(2, 1, ((1.0,), (1.0,))),
    )
    return RawReplay(
        mode="in-order",
        device=device,
        device_name="NVIDIA H200",
        num_sms=132,
        repeats=2,
        signatures=runs,
        calls=calls,
        launch_sets=(launches, (FILL,)),
    )
