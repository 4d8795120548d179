"""Programs of a few actions, played on simulated hosts and GPUs: every row, and whose it is, is known.

A host's threads take turns on one clock; a launch takes host time. Each stream of a GPU runs one row at a
time. A collective ends on all ranks at once: when the last rank has entered it and the transfer is over.
"""

from __future__ import annotations

from dataclasses import dataclass, field

START_NS = 1_700_000_000_000_000_000
LAUNCH_NS, LATENCY_NS, GAP_NS, OP_NS = 3_000, 5_000, 800, 1_000
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_kernel"
TENSILE = "Cijk_Ailk_Bljk_BBS_BH_MT128x128x32_MI32x32x8x1_SN_1LDSB0"
SPLIT_K = "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>(float*)"
RELU = "void at::native::vectorized_elementwise_kernel<4, at::native::clamp_min_scalar_kernel, 2>(int)"
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)"
EXTENSION = "void my_extension::fused_rotary_kernel<64>(float*, int)"
REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


@dataclass
class Row:
    """A kernel, copy or fill on the GPU. op: index of its operator, step: its number; -1 without one.

    external_id: as the recorder writes it; dispatch: of AMD's kernels, from 1; node: of a graph, 0 outside;
    message: of a collective.
    """

    kind: str
    name: str
    start_ns: int
    end_ns: int
    stream: int
    corr: int
    op: int = -1
    step: int = -1
    external_id: int = 0
    size: int = 0
    node: int = 0
    dispatch: int = 0
    message: dict[str, object] = field(default_factory=dict)


@dataclass
class Span:
    """A call, operator or range on the host. external_id: an operator's own, or that of the one around it.

    event: the number that the recorder gives to operators and ranges.
    """

    name: str
    start_ns: int
    end_ns: int
    thread: int
    corr: int = 0
    external_id: int = 0
    sizes: tuple[int, ...] = ()
    step: int = -1
    event: int = -1

    @property
    def flop(self) -> int:
        m, n, k = self.sizes or (0, 0, 0)
        return 2 * m * n * k


@dataclass
class Process:
    """One rank: what its host did and its GPU ran, and the state while it plays.

    collected: CUDA events and ranges that the recorder counted, whatever becomes of the recording. label:
    what a merge of files writes before the ids of its rows.
    """

    rank: int
    world: int = 1
    amd: bool = False
    pid: int = 4000
    device: int = 0
    slow_percent: int = 0
    now_ns: int = START_NS + 1_000_000
    rows: list[Row] = field(default_factory=list)
    calls: list[Span] = field(default_factory=list)
    ops: list[Span] = field(default_factory=list)
    ranges: list[Span] = field(default_factory=list)
    free_ns: dict[int, int] = field(default_factory=dict)
    op_stack: list[int] = field(default_factory=list)
    step: int = -1
    graph: tuple[int, ...] = ()
    corr: int = 100
    dispatches: int = 0
    collected: tuple[int, int] = (0, 0)
    label: str = ""

    def call(self, name: str, thread: int = 0, dur_ns: int = LAUNCH_NS) -> Span:
        self.corr += 1
        owner = self.ops[self.op_stack[-1]].external_id if self.op_stack else 0
        prefix = "hip" if self.amd else "cuda"
        end_ns = self.now_ns + dur_ns
        self.calls.append(Span(prefix + name, self.now_ns, end_ns, thread, self.corr, owner))
        self.now_ns = end_ns + 500
        return self.calls[-1]

    def launch(
        self,
        kind: str,
        name: str,
        dur_ns: int,
        stream: int,
        thread: int = 0,
        not_before_ns: int = 0,
        **more: object,
    ) -> Row:
        call = self.call(
            {"kernel": "LaunchKernel", "copy": "MemcpyAsync", "fill": "MemsetAsync"}[kind], thread
        )
        if self.amd and kind == "fill":
            kind, name = "kernel", "__amd_rocclr_fillBufferAligned"
        return self.run(kind, name, dur_ns, stream, call, not_before_ns, **more)

    def run(
        self,
        kind: str,
        name: str,
        dur_ns: int,
        stream: int,
        call: Span,
        not_before_ns: int = 0,
        **more: object,
    ) -> Row:
        """A row that `call` launched, as soon as its stream is free."""
        if kind == "kernel" and "nccl" not in name:
            dur_ns = dur_ns * (100 + self.slow_percent) // 100
        start_ns = max(call.start_ns + LATENCY_NS, self.free_ns.get(stream, 0) + GAP_NS, not_before_ns)
        self.free_ns[stream] = start_ns + dur_ns
        op = self.op_stack[-1] if self.op_stack else -1
        row = Row(kind, name, start_ns, start_ns + dur_ns, stream, call.corr, op, self.step, call.external_id)
        for key, value in more.items():
            setattr(row, key, value)
        if kind == "kernel":
            self.dispatches += 1
            row.dispatch = self.dispatches
        self.rows.append(row)
        return row

    def begin_op(self, name: str, thread: int, sizes: tuple[int, ...] = ()) -> None:
        self.op_stack.append(len(self.ops))
        number = len(self.ops) + 1
        self.ops.append(Span(name, self.now_ns, self.now_ns, thread, 0, number, sizes, self.step))
        self.now_ns += OP_NS

    def end_op(self) -> None:
        self.now_ns += OP_NS
        self.ops[self.op_stack.pop()].end_ns = self.now_ns
        self.now_ns += OP_NS


Job = list[Process]


@dataclass(frozen=True)
class Op:
    """An operator that launches kernels; of (M, N, K) a matrix product, whose later kernels add up split-K.

    inside: in an outer operator that launches nothing by itself.
    """

    kernels_ns: tuple[int, ...] = (10_000,)
    sizes: tuple[int, int, int] | tuple[()] = ()
    stream: int = 0
    thread: int = 0
    inside: bool = False

    def play(self, job: Job) -> None:
        for process in job:
            if self.inside:
                process.begin_op("aten::linear" if self.sizes else "aten::layer_norm", self.thread)
            process.begin_op(
                "aten::mm" if self.sizes else "aten::native_layer_norm" if self.inside else "aten::relu",
                self.thread,
                self.sizes,
            )
            product = TENSILE if process.amd else GEMM
            names = (product, SPLIT_K) if self.sizes else (NORM if self.inside else RELU,)
            for index, dur_ns in enumerate(self.kernels_ns):
                name = names[min(index, len(names) - 1)]
                process.launch("kernel", name, dur_ns, self.stream, self.thread)
            process.end_op()
            if self.inside:
                process.end_op()


@dataclass(frozen=True)
class Bare:
    """A kernel that no operator launches, as extensions do."""

    dur_ns: int = 5_000
    stream: int = 0

    def play(self, job: Job) -> None:
        for process in job:
            process.launch("kernel", EXTENSION, self.dur_ns, self.stream)


@dataclass(frozen=True)
class Copy:
    """A copy of the host's pinned memory to the GPU, or a fill of the GPU's memory, in an operator."""

    dur_ns: int = 4_000
    size: int = 1 << 16
    stream: int = 0
    fill: bool = False

    def play(self, job: Job) -> None:
        for process in job:
            process.begin_op("aten::zero_" if self.fill else "aten::copy_", 0)
            kind = "fill" if self.fill else "copy"
            process.launch(kind, kind, self.dur_ns, self.stream, size=self.size)
            process.end_op()


@dataclass(frozen=True)
class Replay:
    """A CUDA graph, captured before its first replay: one call, one row per kernel."""

    kernels_ns: tuple[int, ...] = (3_000, 4_000, 5_000)

    def play(self, job: Job) -> None:
        for process in job:
            if process.graph != self.kernels_ns:
                process.call("StreamBeginCapture_v10010" if not process.amd else "StreamBeginCapture")
                for _ in self.kernels_ns:
                    process.call("LaunchKernel")
                process.call("StreamEndCapture")
                process.call("GraphInstantiate")
                process.graph = self.kernels_ns
            call = process.call("GraphLaunch")
            for node, dur_ns in enumerate(self.kernels_ns, start=1):
                name = (GEMM, NORM, RELU)[(node - 1) % 3]
                process.run("kernel", name, dur_ns, 0, call, node=node)


@dataclass(frozen=True)
class Collective:
    """An all-reduce on a stream of its own, after the compute stream; the compute stream waits for its end.

    With `pair` a send from rank 0 to rank 1, in which only these take part.
    """

    transfer_ns: int = 20_000
    elements: int = 1 << 20
    pair: bool = False

    def play(self, job: Job) -> None:
        members = job[:2] if self.pair else job
        rows = []
        for process in members:
            process.begin_op("c10d::send" if self.pair else "c10d::allreduce_", 0)
            process.begin_op("record_param_comms", 0)
            process.call("StreamWaitEvent", dur_ns=1_000)
            name = SEND if self.pair else REDUCE
            not_before_ns = process.free_ns.get(0, 0)
            rows.append(process.launch("kernel", name, 0, 3, 0, not_before_ns, message=self.message(process)))
            process.end_op()
            process.end_op()
            process.call("StreamWaitEvent", dur_ns=1_000)
        end_ns = max(row.start_ns for row in rows) + self.transfer_ns
        for process, row in zip(members, rows, strict=True):
            row.end_ns = process.free_ns[3] = end_ns
            process.free_ns[0] = max(process.free_ns.get(0, 0), end_ns)

    def message(self, process: Process) -> dict[str, object]:
        names = ("send", "recv") if self.pair else ("allreduce", "allreduce")
        text = {
            "Collective name": names[min(process.rank, 1)],
            "In msg nelems": self.elements,
            "Out msg nelems": self.elements,
            "Group size": process.world,
            "dtype": "BFloat16",
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": str(list(range(process.world))),
        }
        if self.pair:
            peer = 1 - process.rank
            text |= {"Rank": peer, "Src Rank" if process.rank else "Dst Rank": peer}
        return text


@dataclass(frozen=True)
class Sync:
    """The host waits for everything on the GPU."""

    def play(self, job: Job) -> None:
        for process in job:
            idle_ns = max([process.now_ns, *process.free_ns.values()]) - process.now_ns
            process.call("DeviceSynchronize", dur_ns=idle_ns + 2_000)


@dataclass(frozen=True)
class Pause:
    """The host does something else."""

    dur_ns: int = 50_000

    def play(self, job: Job) -> None:
        for process in job:
            process.now_ns += self.dur_ns


@dataclass(frozen=True)
class Range:
    """A named range of the program around actions; a number makes it a step of the profiler."""

    name: str
    actions: tuple[Action, ...]
    step: int = -1

    def play(self, job: Job) -> None:
        begins_ns = [process.now_ns for process in job]
        for process in job:
            process.step = max(process.step, self.step)
            process.now_ns += OP_NS
        for action in self.actions:
            action.play(job)
        for process, begin_ns in zip(job, begins_ns, strict=True):
            process.now_ns += OP_NS
            process.ranges.append(Span(self.name, begin_ns, process.now_ns, 0, step=self.step))
            process.now_ns += 200
            if self.step >= 0:
                process.step = -1


Action = Op | Bare | Copy | Replay | Collective | Sync | Pause | Range


@dataclass(frozen=True)
class Program:
    """Actions that every rank runs; slow_percent: how much slower the kernels of each rank are."""

    actions: tuple[Action, ...]
    slow_percent: tuple[int, ...] = (0,)

    def play(self, *, amd: bool = False) -> Job:
        """The processes of all ranks, at the end of the program, which is a wait for the GPU."""
        world = len(self.slow_percent)
        job = [
            Process(rank, world, amd, pid=4000 + rank, device=rank, slow_percent=slow)
            for rank, slow in enumerate(self.slow_percent)
        ]
        for action in (*self.actions, Sync()):
            action.play(job)
        for process in job:
            process.collected = len(process.calls) + len(process.rows), len(process.ranges)
            for event, span in enumerate([*process.ops, *process.ranges]):
                span.event = event
        return job


@dataclass(frozen=True)
class Merge:
    """Two processes of one program in one file, with equal ids; the second one's kernels are 7 % slower.

    shift_ns: how much later the second one runs; labels: rows have that of their rank, as SGLang writes it.
    """

    shift_ns: int = 50_000_000
    labels: bool = False
    one_gpu: bool = False

    def play(self, program: Program) -> Job:
        (first,), (second,) = program.play(), Program(program.actions, (7,)).play()
        second.pid, second.device = first.pid + 1, 0 if self.one_gpu else 1
        for span in [*second.rows, *second.calls, *second.ops, *second.ranges]:
            span.start_ns += self.shift_ns
            span.end_ns += self.shift_ns
        if self.labels:
            first.label, second.label = "[TP00] ", "[TP01] "
        return [first, second]


def step(number: int, *actions: Action) -> Range:
    return Range(f"ProfilerStep#{number}", actions, number)
