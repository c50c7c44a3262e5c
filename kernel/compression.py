"""The codecs of record batches, in one table for reading and writing (Kafka: CompressionType).

gzip is Python's own, snappy and zstd are cramjam's. lz4 has its own library, because brokers and Java accept only
frames whose blocks do not depend on each other.
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

#: Bytes, or any object with the buffer protocol.
Buffer = Any

#: Java's frame around snappy blocks: magic, version, oldest version that reads it; then each block after its length.
_XERIAL_MAGIC = b"\x82SNAPPY\0"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_LENGTH = struct.Struct(">i")
_BLOCK_BYTES = 32 * 1024  # as in Java
#: Maximum compression ratio of snappy: a copy of 64 bytes takes three bytes.
_SNAPPY_RATIO = 22


class BrokenDataError(Exception):
    """Bytes that a codec cannot decompress."""


@dataclass(frozen=True, slots=True)
class Codec:
    """number: that in a batch's attributes. decompress: raises one of _ERRORS for broken data."""

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
    """Decompress Java's frames, and the plain block that librdkafka and others write."""
    view = memoryview(data)
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _snappy_block(view)
    blocks, at = [], len(_XERIAL_HEADER)
    while at < len(view):
        (size,) = _LENGTH.unpack_from(view, at)
        at += _LENGTH.size
        if not 0 < size <= len(view) - at:
            raise ValueError(f"a snappy block has {size} bytes, but only {len(view) - at} bytes follow")
        blocks.append(_snappy_block(view[at : at + size]))
        at += size
    return b"".join(blocks)


def _snappy_block(block: memoryview) -> Buffer:
    # cramjam allocates the length in the header, up to 4 GiB, before it reads a byte.
    size = cramjam.snappy.decompress_raw_len(block)
    if size > len(block) * _SNAPPY_RATIO:
        raise ValueError(f"a snappy block of {len(block)} bytes cannot decompress to {size} bytes, as its header says")
    return cramjam.snappy.decompress_raw(block)


#: By compression.type. Compressing the same data twice produces the same bytes.
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
    """Return the records of a batch. number: its codec. Raises BrokenDataError, and KeyError for an unknown codec."""
    codec = _BY_NUMBER[number]
    try:
        return codec.decompress(data)
    except _ERRORS as error:
        raise BrokenDataError(str(error) or type(error).__name__) from error
