"""The 128-bit Murmur3 hash of Kafka Streams' foreign-key joins (Kafka Streams: Murmur3.hash128)."""

from __future__ import annotations

import struct
from collections.abc import Callable

from penstock.kernel import codecs as kernel_codecs

_SEED = 104729
_C1 = 0x87C37B91114253D5
_C2 = 0x4CF5AD432745937F
_MASK = 0xFFFFFFFFFFFFFFFF
_BLOCK = struct.Struct("<QQ")
_RESULT = struct.Struct(">QQ")


def hash128_in_python(data: bytes) -> bytes:
    """Return the hash as the 16 bytes in Kafka Streams' messages: two big-endian numbers."""
    h1 = h2 = _SEED
    whole = len(data) & ~15
    for k1, k2 in _BLOCK.iter_unpack(data[:whole]):
        h1 ^= _mix1(k1)
        h1 = (_rotate(h1, 27) + h2) * 5 + 0x52DCE729 & _MASK
        h2 ^= _mix2(k2)
        h2 = (_rotate(h2, 31) + h1) * 5 + 0x38495AB5 & _MASK
    k1, k2 = _BLOCK.unpack(data[whole:].ljust(16, b"\0"))
    h1 ^= _mix1(k1) ^ len(data)
    h2 ^= _mix2(k2) ^ len(data)
    h1 = h1 + h2 & _MASK
    h2 = h2 + h1 & _MASK
    h1, h2 = _finish(h1), _finish(h2)
    h1 = h1 + h2 & _MASK
    h2 = h2 + h1 & _MASK
    return _RESULT.pack(h1, h2)


def _rotate(k: int, bits: int) -> int:
    return (k << bits | k >> 64 - bits) & _MASK


def _mix1(k: int) -> int:
    return _rotate(k * _C1 & _MASK, 31) * _C2 & _MASK


def _mix2(k: int) -> int:
    return _rotate(k * _C2 & _MASK, 33) * _C1 & _MASK


def _finish(h: int) -> int:
    h = (h ^ h >> 33) * 0xFF51AFD7ED558CCD & _MASK
    h = (h ^ h >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return h ^ h >> 33


hash128: Callable[[bytes], bytes] = hash128_in_python if kernel_codecs is None else kernel_codecs.hash128
