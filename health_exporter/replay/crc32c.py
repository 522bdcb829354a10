"""CRC-32C (Castagnoli; RFC 3720, appendix B.4), and how TensorFlow masks it in its files."""

from __future__ import annotations

from functools import lru_cache

_POLYNOMIAL = 0x82F63B78  # reversed


@lru_cache(maxsize=1)
def _table() -> list[int]:
    """The remainders of all 16-bit words: two bytes a look-up."""
    table = []
    for word in range(1 << 16):
        value = word
        for _ in range(16):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


def crc32c(data: bytes) -> int:
    """The checksum of `data`."""
    table = _table()
    value = 0xFFFFFFFF
    even = len(data) & ~1
    for index in range(0, even, 2):
        word = data[index] | data[index + 1] << 8
        value = table[(value ^ word) & 0xFFFF] ^ (value >> 16)
    if even != len(data):
        value ^= data[-1]
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    """The checksum as it stands in a TFRecord file (tensorflow/core/lib/hash/crc32c.h): rotated,
    plus a constant, so that a checksum of data that holds its own checksum is still one.
    """
    value = crc32c(data)
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF
