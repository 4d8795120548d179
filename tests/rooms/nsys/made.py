"""A made Kineto trace of a Transformer's steps on a GPU, whose every figure is known.

Times in µs: a GEMM takes 20, a kernel of another kind 4, an optimizer kernel 10, a copy 2. The backward
pass is launched by a second thread, as autograd does it. Every phase ends 50 after its last kernel.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path

from lab.rooms.nsys.flops import ModelSpec
from tests.tracegen import TraceWriter

MAIN, WORKER = 100, 101
GEMM_US, OTHER_US, OPTIMIZER_US, COPY_US = 20, 4, 10, 2
GEMM = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, 3>(int)"
MASK = "void at::native::vectorized_elementwise_kernel<4, at::native::masked_fill_kernel, 3>(int)"
MAX = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MaxOps<float> > >(int)"
ADAM = "void at::native::multi_tensor_apply_kernel<at::native::FusedAdamMathFunctor<float, 4> >(int)"
SPLIT_K = "void splitKreduce_kernel<32, 16, int, float>(int)"
SPEC = ModelSpec(name="tiny", d_model=64, d_ff=256, layers=2, heads=4)
STREAM, PID = 7, 4321


class Maker:
    """Launches on the CPU's clock, kernels one after the other on the GPU's; ranges around them."""

    def __init__(self) -> None:
        self.writer = TraceWriter()
        self.now, self.gpu_free = 1000.0, 0.0

    @contextmanager
    def range(self, name, tid=MAIN):
        begin, self.now = self.now, self.now + 1
        yield
        self.now += 1
        self.writer.event("user_annotation", name, begin, self.now - begin, tid=tid)

    def kernel(self, name, took_us, tid=MAIN, cat="kernel"):
        self.writer.next_id += 1
        correlation = self.writer.next_id
        self.writer.event(
            "cuda_runtime", "cudaLaunchKernel", self.now, 2, tid=tid, args={"correlation": correlation}
        )
        start = max(self.now + 3, self.gpu_free)
        args = {
            "device": 0,
            "stream": STREAM,
            "correlation": correlation,
            "grid": [8, 1, 1],
            "block": [256, 1, 1],
        }
        self.writer.event(cat, name, start, took_us, pid=0, tid=STREAM, args=args)
        self.gpu_free, self.now = start + took_us, self.now + 3

    def gemm(self, tid=MAIN):
        self.kernel(GEMM, GEMM_US, tid)

    def other(self, name=ADD, tid=MAIN):
        self.kernel(name, OTHER_US, tid)

    @contextmanager
    def phase(self, name):
        with self.range(name):
            yield
            self.now = max(self.now, self.gpu_free) + 50


def forward(maker, spec):
    with maker.phase("forward"):
        maker.other()
        for _ in range(spec.layers):
            for _ in range(1 if spec.fused_qkv else 3):
                maker.gemm()
            with maker.range("scaled_dot_product_attention"):
                with maker.range("computing_attention_scores"):
                    maker.other()  # K^T is copied first
                    maker.gemm()
                with maker.range("applying_mask"):
                    maker.other(MASK)
                with maker.range("computing_softmax"):
                    for name in (MAX, ADD, ADD, MAX, ADD):
                        maker.other(name)
                with maker.range("final_matmul"):
                    maker.gemm()
            for _ in range(4):
                maker.gemm()
        maker.gemm()
        maker.other(SPLIT_K)


def backward(maker, spec, *, worker=True):
    tid = WORKER if worker else MAIN
    with maker.phase("backward"):
        maker.other()  # the unit gradient, on the caller's thread
        for _ in range(spec.backward_gemms):
            maker.gemm(tid)
        maker.other(tid=tid)


def write_trace(
    path: Path,
    kind="training",
    *,
    spec=SPEC,
    steps=2,
    worker=True,
    warmup=True,
    kernels=True,
    extra_gemm=False,
):
    """Write a trace of `kind` (forward, forward_backward, training); returns its path."""
    maker = Maker()
    names = [*(["warmup"] if warmup else []), *(f"step_{n}" for n in range(steps))]
    for name in names:
        with maker.range(name):
            forward(maker, spec)
            if extra_gemm and name == "step_1":
                with maker.phase("forward"):
                    maker.gemm()
            if kind != "forward":
                backward(maker, spec, worker=worker)
            if kind == "training":
                with maker.phase("optimizer_step"):
                    for _ in range(3):
                        maker.kernel(ADAM, OPTIMIZER_US)
    events = maker.writer.events
    if not kernels:
        events = [event for event in events if event["cat"] not in ("kernel", "cuda_runtime")]
    devices = [{"id": 0, "name": "Made GPU"}] if kernels else []
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps(
            {"schemaVersion": 1, "deviceProperties": devices, "traceEvents": events, "baseTimeNanoseconds": 0}
        )
    )
    return path


def truth(spec=SPEC):
    """Kernel times (µs) and counts of a step that follow from the trace's rules."""
    others = 1 + spec.layers * (1 + 1 + 5) + 1
    forward_us = spec.forward_gemms * GEMM_US + others * OTHER_US
    backward_us = spec.backward_gemms * GEMM_US + 2 * OTHER_US
    return {
        "forward_us": forward_us,
        "backward_us": backward_us,
        "optimizer_us": 3 * OPTIMIZER_US,
        "forward_kernels": spec.forward_gemms + others,
        "backward_kernels": spec.backward_gemms + 2,
        "forward_matmul": spec.forward_gemms * GEMM_US / forward_us,
        "step_matmul": 3 * spec.forward_gemms * GEMM_US / (forward_us + backward_us + 3 * OPTIMIZER_US),
    }
