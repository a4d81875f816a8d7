"""Encodes Perfetto's track events: the few messages of its trace format that a timeline of slices and counters needs.

Numbers of fields are those of Perfetto's public `trace_packet.proto`, `track_event.proto`, `track_descriptor.proto`,
`debug_annotation.proto` and `interned_data.proto`, which keep them for good.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4  # TrackEvent.Type
_CLEARED, _NEEDS = 1, 2  # TracePacket.SequenceFlags
_SEQUENCE = 1
_EXPLICIT = 3  # TrackDescriptor.ChildTracksOrdering
_REALTIME, _BOOTTIME = 1, 6  # BuiltinClock
_TIMESTAMP_BYTES = 9  # of a varint of 63 bits

Ints = npt.NDArray[np.int64]
Arg = int | float | str | bool | None
KEPT_ARGUMENTS = 1 << 16  # launch numbers do not return; the others do


def varint(value: int) -> bytes:
    """A base-128 number; negative ones as two's complement of 64 bits."""
    return _SMALL[value] if 0 <= value < len(_SMALL) else _varint(value)


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SMALL = [_varint(value) for value in range(1 << 14)]


def number(field: int, value: int) -> bytes:
    """A field that holds a varint."""
    return varint(field << 3) + varint(value)


def double(field: int, value: float) -> bytes:
    """A field that holds a double."""
    return varint(field << 3 | 1) + struct.pack("<d", value)


def data(field: int, value: bytes | str) -> bytes:
    """A field that holds a string, bytes or a message."""
    raw = value.encode("utf-8", "replace") if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(raw)) + raw


def timestamps(times: Ints) -> list[bytes]:
    """Varints of nanoseconds since 1970, all of nine bytes."""
    shifts = np.arange(_TIMESTAMP_BYTES, dtype=np.int64) * 7
    out = ((np.maximum(times, 0)[:, None] >> shifts) & 0x7F).astype(np.uint8)
    out[:, :-1] |= 0x80
    flat = out.tobytes()
    return [flat[i : i + _TIMESTAMP_BYTES] for i in range(0, len(flat), _TIMESTAMP_BYTES)]


# Sequence, flags, and the tag of a track event.
_FLAGS = {
    flags: number(10, _SEQUENCE) + number(13, flags) + varint(11 << 3 | 2) for flags in (_NEEDS, _NEEDS | _CLEARED)
}


class TrackEvents:
    """Encodes packets of one sequence. Names, categories and names of arguments are interned as they come.

    What a method returns is to be written to the file in the order of the calls.
    """

    def __init__(self) -> None:
        self._interned: dict[tuple[int, str], int] = {}
        self._fresh = bytearray()  # interned data of the packet that is made next
        self._started = False
        self._ends: dict[int, bytes] = {}
        self._arguments: dict[tuple[str, Arg], bytes] = {}  # of integers

    def clock(self, now: int) -> bytes:
        """Times are those of the real-time clock, so that the UI can show dates."""
        clocks = b"".join(data(1, number(1, clock) + number(2, now)) for clock in (_BOOTTIME, _REALTIME))
        return data(1, number(10, _SEQUENCE) + data(6, clocks))

    def process(self, track: int, pid: int, name: str, rank: int = 0) -> bytes:
        """A process, whose tracks come in the order of their ranks."""
        process = number(1, pid) + data(6, name)
        return self._descriptor(
            number(1, track) + data(3, process) + number(11, _EXPLICIT) + number(12, rank) + data(2, name)
        )

    def track(self, track: int, parent: int, name: str, rank: int) -> bytes:
        """A track of slices."""
        return self._descriptor(number(1, track) + number(5, parent) + data(2, name) + number(12, rank))

    def counter(self, track: int, parent: int, name: str, rank: int, unit: str) -> bytes:
        """A track of values."""
        counter = data(6, unit)
        return self._descriptor(
            number(1, track) + number(5, parent) + data(2, name) + number(12, rank) + data(8, counter)
        )

    def _descriptor(self, body: bytes) -> bytes:
        return data(1, number(10, _SEQUENCE) + data(60, body))

    def slice_head(self, track: int, name: str, category: str, *, once: bool = False) -> bytes:
        """What begins slices of this track, name and category, for `slice`; `once` for a name that does not return."""
        return self._head(_BEGIN, track, name, category, once=once)

    def _head(self, kind: int, track: int, name: str, category: str, *, once: bool = False) -> bytes:
        named = data(23, name) if once else number(10, self._intern(2, name))
        return number(9, kind) + number(11, track) + named + number(3, self._intern(1, category))

    def slice(self, head: bytes, track: int, start: bytes, end: bytes, arguments: bytes = b"") -> bytes:
        """A slice between two times (of `timestamps`): two packets."""
        return self._packet(start, head + arguments) + self._end(track, end)

    def _end(self, track: int, time: bytes) -> bytes:
        tail = self._ends.get(track)
        if tail is None:
            event = data(11, number(9, _END) + number(11, track))
            rest = number(10, _SEQUENCE) + number(13, _NEEDS) + event
            tail = self._ends[track] = rest
        return b"\x0a" + varint(1 + _TIMESTAMP_BYTES + len(tail)) + b"\x40" + time + tail

    def instant(self, track: int, time: bytes, name: str, category: str, arguments: bytes = b"") -> bytes:
        """One moment."""
        return self._packet(time, self._head(_INSTANT, track, name, category) + arguments)

    def value(self, track: int, time: bytes, value: float) -> bytes:
        """A value of a counter."""
        return self._packet(time, number(9, _COUNTER) + number(11, track) + double(44, value))

    def arguments(self, names: Sequence[str], values: Sequence[Arg]) -> bytes:
        """Arguments of an event; None is left out."""
        known = self._arguments
        return b"".join(
            [
                known.get((name, value)) or self._argument(name, value)
                for name, value in zip(names, values, strict=True)
                if value is not None
            ]
        )

    def _argument(self, name: str, value: Arg) -> bytes:
        body = number(1, self._intern(3, name))
        if isinstance(value, bool):
            return data(4, body + number(2, value))  # not kept: it is equal to an integer
        if isinstance(value, int):
            found = data(4, body + number(4, value))
            if len(self._arguments) >= KEPT_ARGUMENTS:
                self._arguments.clear()
            self._arguments[name, value] = found
            return found
        return data(4, body + (double(5, value) if isinstance(value, float) else data(6, str(value))))

    def _intern(self, field: int, text: str) -> int:
        iid = self._interned.get((field, text))
        if iid is None:
            iid = self._interned[field, text] = len(self._interned) + 1
            self._fresh += data(field, number(1, iid) + data(2, text))
        return iid

    def _packet(self, time: bytes, event: bytes) -> bytes:
        flags = _NEEDS if self._started else _NEEDS | _CLEARED
        self._started = True
        body = b"\x40" + time + _FLAGS[flags] + varint(len(event)) + event
        if self._fresh:
            body += data(12, bytes(self._fresh))
            self._fresh.clear()
        return b"\x0a" + varint(len(body)) + body
