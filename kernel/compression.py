"""The codecs of record batches: one table for what is read and what is written (Kafka: CompressionType).

gzip is Python's own. lz4 has its own library, since brokers and Java take only frames whose blocks do not depend on
each other; cramjam has the other two.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cramjam
import lz4.frame

#: Bytes, or what has such a buffer.
Buffer = Any

#: Java's frame around blocks of snappy: magic, version, oldest version that reads it; then each block after its length.
_XERIAL_MAGIC = b"\x82SNAPPY\0"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_LENGTH = struct.Struct(">i")
_BLOCK_BYTES = 32 * 1024  # Java's
#: What snappy can make of a byte at most: a copy of 64 bytes takes three.
_SNAPPY_RATIO = 22


class BrokenDataError(Exception):
    """Bytes that a codec cannot decompress."""


@dataclass(frozen=True, slots=True)
class Codec:
    """number: in a batch's attributes. decompress: raises one of many errors for broken data, see ``decompress``."""

    number: int
    compress: Callable[[Buffer], Buffer]
    decompress: Callable[[Buffer], Buffer]


def _snappy_compress(data: Buffer) -> bytes:
    parts: list[Buffer] = [_XERIAL_HEADER]
    view = memoryview(data)
    for start in range(0, len(view), _BLOCK_BYTES):
        block = cramjam.snappy.compress_raw(view[start : start + _BLOCK_BYTES])
        parts += (_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _snappy_decompress(data: Buffer) -> Buffer:
    """Decompress Java's frames, and the bare block that librdkafka and others write."""
    view = memoryview(data)
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _snappy_block(view)
    blocks, at = [], len(_XERIAL_HEADER)
    while at < len(view):
        (size,) = _LENGTH.unpack_from(view, at)
        at += _LENGTH.size
        if not 0 < size <= len(view) - at:
            raise ValueError(f"a block of {size} bytes where {len(view) - at} are left")
        blocks.append(_snappy_block(view[at : at + size]))
        at += size
    return b"".join(blocks)


def _snappy_block(block: memoryview) -> Buffer:
    # The length that it says is allocated before a byte is read, up to 4 GiB.
    size = cramjam.snappy.decompress_raw_len(block)
    if size > len(block) * _SNAPPY_RATIO:
        raise ValueError(f"a block of {len(block)} bytes that says it has {size}")
    return cramjam.snappy.decompress_raw(block)


#: By compression.type. What is written is the same bytes each time.
CODECS = {
    "none": Codec(0, bytes, bytes),
    "gzip": Codec(1, lambda data: gzip.compress(data, 6, mtime=0), gzip.decompress),
    "snappy": Codec(2, _snappy_compress, _snappy_decompress),
    "lz4": Codec(3, lambda data: lz4.frame.compress(data, block_linked=False, store_size=False), lz4.frame.decompress),
    "zstd": Codec(4, cramjam.zstd.compress, cramjam.zstd.decompress),
}
_BY_NUMBER = {codec.number: codec for codec in CODECS.values()}
_ERRORS = (
    *(RuntimeError, OSError, EOFError, ValueError, MemoryError),
    *(struct.error, zlib.error, cramjam.DecompressionError),
)


def decompress(number: int, data: Buffer) -> Buffer:
    """Return the records of a batch. number: its codec. Raises BrokenDataError, KeyError for a codec that is none."""
    codec = _BY_NUMBER[number]
    try:
        return codec.decompress(data)
    except _ERRORS as error:
        raise BrokenDataError(str(error) or type(error).__name__) from error
