"""A writer of Perfetto files through the official definitions, so that reader and writer share no code."""

from __future__ import annotations

import zlib
from pathlib import Path

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

BEGIN, END = 1, 2


class Writer:
    """Packets of one sequence; names are interned when `intern` is true, with ids counted from 1."""

    def __init__(self, *, intern: bool = True) -> None:
        self.packets: list[pb.TracePacket] = []
        self.intern = intern
        self.ids: dict[tuple[str, str], int] = {}
        self.clear = True

    def packet(self) -> pb.TracePacket:
        made = pb.TracePacket(trusted_packet_sequence_id=1)
        made.sequence_flags = 3 if self.clear else 2
        self.clear = False
        self.packets.append(made)
        return made

    def clear_names(self) -> None:
        """Names are flushed: ids start anew, with other meanings."""
        self.ids, self.clear = {}, True

    def iid(self, packet: pb.TracePacket, kind: str, text: str) -> int:
        if (kind, text) not in self.ids:
            self.ids[kind, text] = 1 + sum(one == kind for one, _ in self.ids)
            entry = getattr(packet.interned_data, kind).add()
            entry.iid = self.ids[kind, text]
            if kind == "debug_annotation_string_values":
                entry.str = text.encode()
            else:
                entry.name = text
        return self.ids[kind, text]

    def process(self, uuid: int, pid: int, name: str = "") -> int:
        track = self.packet().track_descriptor
        track.uuid, track.process.pid, track.process.process_name = uuid, pid, name
        return uuid

    def thread(self, uuid: int, pid: int, tid: int, name: str = "", parent: int = 0) -> int:
        track = self.packet().track_descriptor
        track.uuid, track.thread.pid, track.thread.tid, track.parent_uuid = uuid, pid, tid, parent
        track.thread.thread_name = name
        return uuid

    def track(self, uuid: int, name: str, parent: int = 0) -> int:
        track = self.packet().track_descriptor
        track.uuid, track.name, track.parent_uuid = uuid, name, parent
        return uuid

    def begin(self, track: int, ts: int, category: str, name: str, flow: int = 0, **args: object) -> None:
        packet = self.packet()
        event = packet.track_event
        packet.timestamp, event.type, event.track_uuid = ts, BEGIN, track
        if self.intern:
            event.category_iids.append(self.iid(packet, "event_categories", category))
            event.name_iid = self.iid(packet, "event_names", name)
        else:
            event.categories.append(category)
            event.name = name
        if flow:
            event.flow_ids.append(flow)
        for key, value in args.items():
            one = event.debug_annotations.add()
            key = key.replace("__", " ")
            if self.intern:
                one.name_iid = self.iid(packet, "debug_annotation_names", key)
            else:
                one.name = key
            self._set(packet, one, value)

    def _set(self, packet: pb.TracePacket, one: pb.DebugAnnotation, value: object) -> None:
        if isinstance(value, bool):
            one.bool_value = value
        elif isinstance(value, int):
            one.int_value = value
        elif isinstance(value, float):
            one.double_value = value
        elif isinstance(value, list):
            for item in value:
                self._set(packet, one.array_values.add(), item)
        elif self.intern:
            one.string_value_iid = self.iid(packet, "debug_annotation_string_values", str(value))
        else:
            one.string_value = str(value)

    def end(self, track: int, ts: int) -> None:
        packet = self.packet()
        packet.timestamp, packet.track_event.type, packet.track_event.track_uuid = ts, END, track

    def slice(self, track: int, start: int, end: int, category: str, name: str, **more: object) -> None:
        self.begin(track, start, category, name, **more)
        self.end(track, end)

    def data(self) -> bytes:
        return pb.Trace(packet=self.packets).SerializeToString()

    def compressed(self) -> bytes:
        """All packets inside two compressed ones."""
        half = len(self.packets) // 2
        parts = [self.packets[:half], self.packets[half:]]
        made = [
            pb.TracePacket(compressed_packets=zlib.compress(pb.Trace(packet=part).SerializeToString()))
            for part in parts
        ]
        return pb.Trace(packet=made).SerializeToString()

    def write(self, path: Path) -> Path:
        path.write_bytes(self.data())
        return path


def torch_trace(*, intern: bool = True, clear: bool = False) -> Writer:
    """Two kernels that touch and a copy on stream 7 of GPU 0, launched by thread 21 of process 20.

    All in aten::mm. As torch writes it: grouped by kind, ends after the begins, the last kernel first.
    """
    made = Writer(intern=intern)
    made.process(3, 0, "GPU 0")
    made.thread(4, 0, 7, "stream 7", parent=3)
    _host(made, clear=clear, flows=True)
    sizes = {"grid": [8, 2, 1], "block": [256, 1, 1], "stream": 7, "device": 0, "External__id": 5}
    made.begin(4, 3100, "kernel", "second", flow=32, correlation=32, **sizes)
    made.begin(4, 3000, "kernel", "first", flow=31, **sizes)
    made.end(4, 3250)
    made.end(4, 3100)
    kinds = {"copy__kind": "HtoD", "src__kind": "Pageable", "dst__kind": "Device", "bytes": 64}
    made.slice(4, 3300, 3350, "gpu_memcpy", "Memcpy", correlation=33, stream=7, **kinds)
    return made


def _host(made: Writer, *, clear: bool, flows: bool) -> None:
    made.process(1, 20, "python")
    made.thread(2, 20, 21, "main", parent=1)
    shapes = {"Input__Dims": [[2, 3], [3, 4]], "Input__type": ["float", "float"]}
    made.begin(2, 1000, "cpu_op", "aten::mm", External__id=5, **shapes)
    made.begin(2, 900, "user_annotation", "forward")
    made.end(2, 2000)
    made.end(2, 2100)
    for ts, corr in ((1100, 31), (1300, 32), (1500, 33)):
        flow = corr if flows else 0
        made.begin(2, ts, "cuda_runtime", "cudaLaunchKernel", flow=flow, correlation=corr)
    for ts in (1200, 1400, 1600):
        made.end(2, ts)
    if clear:
        made.clear_names()


def _raw(into: object, number: int, message: object) -> None:
    """A field that the official definitions have in an extension."""
    body, tag = message.SerializeToString(), number << 3 | 2
    into.MergeFromString(bytes([tag & 0x7F | 0x80, tag >> 7, len(body)]) + body)


def staged_trace(*, clear: bool = False) -> Writer:
    """torch_trace() as newer versions write it: GPU operations are render stages, counters samples."""
    made = Writer()
    _host(made, clear=clear, flows=False)
    packet = made.packet()
    for iid, name in (
        (1, "Kernel"),
        (2, "Memcpy"),
        (4, "Annotation"),
        (5, "EventRecord"),
        (100, "[7] stream 7"),
    ):
        packet.interned_data.gpu_specifications.add(iid=iid, name=name)
    for iid, name in ((1, "registers_per_thread"), (2, "shared_mem_dynamic")):
        _raw(packet.interned_data, 1001, pb.InternedComputeArgName(iid=iid, name=name))
    for iid, name in ((1, "first"), (2, "second")):
        _raw(packet.interned_data, 1000, pb.InternedComputeKernel(iid=iid, demangled_name=name))
    for kernel, start, dur, corr in ((2, 3100, 150, 32), (1, 3000, 100, 31)):
        stage = _stage(made, start, dur, 1, corr)
        stage.kernel_iid = kernel
        stage.launch.grid_size.x, stage.launch.grid_size.y, stage.launch.grid_size.z = 8, 2, 1
        size = stage.launch.workgroup_size
        size.x, size.y, size.z = 256, 1, 1
        stage.launch.args.add(name_iid=1, uint_value=40)
        stage.launch.args.add(name_iid=2, uint_value=512)
    _stage(made, 3300, 50, 2, 33).extra_data.add(name="bytes", value="64")
    _stage(made, 2990, 400, 4, 0)
    _stage(made, 3400, 0, 5, 0)
    made.packet().gpu_counter_event.counter_descriptor_iid = 1
    return made


def _stage(made: Writer, start: int, dur: int, stage: int, corr: int) -> pb.GpuRenderStageEvent:
    packet = made.packet()
    packet.timestamp, one = start, packet.gpu_render_stage_event
    one.event_id, one.duration, one.hw_queue_iid, one.stage_iid, one.gpu_id = start, dur, 100, stage, 0
    for name, value in (("device id", 0), ("stream id", 7), ("correlation", corr), ("process_id", 20)):
        if value or name.endswith("id"):
            one.extra_data.add(name=name, value=str(value))
    return one
