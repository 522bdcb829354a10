"""What one rank says of itself, and how it travels: a few hundred bytes, at most."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

STATES = ("starting", "running", "finished", "terminated", "interrupted", "failed")
"""`starting` until the first step; the last four are goodbyes: returned, ended by SIGTERM, ended
by Ctrl-C, ended by an exception."""

GOODBYES = frozenset(STATES[2:])
"""The process means to go, so its silence afterwards is no news."""

LEFT = frozenset({"failed", "terminated", "interrupted"})
"""Goodbyes in the middle of the work: the other ranks will wait for this one in vain."""

_MAGIC = b"HB"
_VERSION = 1  # raised only when an older reader would misunderstand; text fields may be appended
# Magic, version, rank, pid, beats, progress, step, marks, still_s, timeout_s.
_HEAD = struct.Struct("!2sBIqQQqIdd")
_N_TEXTS = 6  # host, address, phase, state, where, process
_SEPARATOR = "\0"
# A host name has at most 253 characters, and a position in a source file reads well in 200; what
# is longer is cut, so that 16,384 beats stay a few megabytes.
_TEXT_LIMIT = 256


@dataclass(frozen=True, slots=True)
class Beat:
    """What a rank says of itself.

    Args:
        rank: Its global rank.
        host: Name of its machine.
        address: `host:port` of its endpoint as others reach it; "" if it has none.
        pid: Its process.
        beats: Counts this process's beats; every one sent is higher than the one before.
        progress: Moves with the training thread only.
        step: Last observed step; -1 before the first.
        phase: The phase it is in, as marked; "" when unmarked.
        state: One of `STATES`.
        still_s: Seconds since its last progress, on its own monotonic clock.
        timeout_s: The longest that it may stand still now; infinity where there is no limit.
        where: Where its training thread is in the Python source, once it has been still for long,
            as in `train.py:42 load_batch`; "" otherwise.
        marks: Phases marked since the last observed step, without `checkpoint` and `eval`, which
            one rank often does alone. Ranks that run the same program can be compared by it within
            a step; the running count `progress` cannot serve for that.
        process: Which process of which running kernel `pid` means, so that another rank on the
            same machine can tell whether it still exists; "" if that is not known.
    """

    rank: int
    host: str
    address: str
    pid: int
    beats: int
    progress: int
    step: int
    phase: str
    state: str
    still_s: float
    timeout_s: float
    where: str = ""
    marks: int = 0
    process: str = ""

    @property
    def said_goodbye(self) -> bool:
        """Whether this is the last word of its process."""
        return self.state in GOODBYES

    def encode(self) -> bytes:
        """The beat as bytes; texts are cut to 256 characters.

        Raises:
            ValueError: A number is negative where it cannot be, or too large for its field.
        """
        try:
            head = _HEAD.pack(
                _MAGIC,
                _VERSION,
                self.rank,
                self.pid,
                self.beats,
                self.progress,
                self.step,
                self.marks,
                self.still_s,
                self.timeout_s,
            )
        except struct.error as error:
            raise ValueError(f"beat of rank {self.rank} cannot be encoded: {error}") from error
        texts = (self.host, self.address, self.phase, self.state, self.where, self.process)
        cleaned = (text[:_TEXT_LIMIT].replace(_SEPARATOR, " ") for text in texts)
        return head + _SEPARATOR.join(cleaned).encode("utf-8", "replace")

    @classmethod
    def decode(cls, data: bytes) -> Beat:
        """The beat that `encode` made, by this version or by one that appended fields.

        Raises:
            ValueError: `data` is no beat.
        """
        try:
            head = _HEAD.unpack_from(data)
            texts = data[_HEAD.size :].decode().split(_SEPARATOR)
        except (struct.error, UnicodeDecodeError) as error:
            raise ValueError(f"not a beat: {error}") from error
        magic, version, rank, pid, beats, progress, step, marks, still_s, timeout_s = head
        if magic != _MAGIC or version != _VERSION:
            raise ValueError(f"not a beat of version {_VERSION}: it begins with {data[:3]!r}")
        if len(texts) < _N_TEXTS or texts[3] not in STATES:
            raise ValueError(f"not a beat: its texts are {texts!r}")
        # The comparisons are false for NaN.
        if not (0 <= still_s < math.inf and timeout_s > 0):
            raise ValueError(f"not a beat: still for {still_s} s of {timeout_s} s")
        return cls(
            rank,
            texts[0],
            texts[1],
            pid,
            beats,
            progress,
            step,
            texts[2],
            texts[3],
            still_s,
            timeout_s,
            texts[4],
            marks,
            texts[5],
        )
