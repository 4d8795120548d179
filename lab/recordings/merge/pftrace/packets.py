"""TracePackets of Perfetto (`protos/perfetto/trace`) as bytes: the few fields that a merge needs."""

from __future__ import annotations

# Field numbers and values of the public format.
PACKET, TIMESTAMP, SEQUENCE, TRACK_EVENT, INTERNED, FLAGS, TRACK = 1, 8, 10, 11, 12, 13, 60
EVENT_CATEGORY, EVENT_DETAIL, EVENT_TYPE, EVENT_NAME, EVENT_TRACK = 3, 4, 9, 10, 11
EVENT_FLOW, EVENT_FLOW_END = 47, 48
DETAIL_NAME, DETAIL_INT, DETAIL_TEXT = 1, 4, 6
TRACK_UUID, TRACK_NAME, TRACK_PROCESS, TRACK_THREAD, TRACK_PARENT = 1, 2, 3, 4, 5
PROCESS_PID, PROCESS_NAME, THREAD_PID, THREAD_TID, THREAD_NAME = 1, 6, 1, 2, 5
INTERNED_CATEGORY, INTERNED_NAME, INTERNED_DETAIL = 1, 2, 3
SLICE_BEGIN, SLICE_END = 1, 2
STATE_CLEARED, NEEDS_STATE = 1, 2


def int_field(field: int, value: int) -> bytes:
    """A number as the format's varint; negative ones as their 64-bit complement."""
    return _varint(field << 3) + _varint(value & 0xFFFFFFFFFFFFFFFF)


def fixed_field(field: int, value: int) -> bytes:
    return _varint(field << 3 | 1) + value.to_bytes(8, "little")


def text_field(field: int, text: str) -> bytes:
    return bytes_field(field, text.encode("utf-8", "replace"))


def bytes_field(field: int, body: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(body)) + body


def interned(kind: int, number: int, text: str) -> bytes:
    return bytes_field(kind, int_field(1, number) + text_field(2, text))


def _varint(value: int) -> bytes:
    if value < 0x80:
        return _SMALL[value]
    digits = bytearray()
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


_SMALL = [bytes([value]) for value in range(0x80)]
