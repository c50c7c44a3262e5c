"""The codecs of record batches, in one table for reading and writing (Kafka: CompressionType).

gzip and zstd are Python's own (zstd by its backport before Python 3.14), snappy is cramjam's. lz4 has its own library,
because brokers and Java accept only frames whose blocks do not depend on each other.

A few bytes can decompress to gigabytes, so a batch is decompressed in pieces of a size that the reader chooses.
"""

from __future__ import annotations

import gzip
import struct
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import cramjam
import lz4.frame

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

#: Bytes, or any object with the buffer protocol.
Buffer = Any

#: Java's frame around snappy blocks: magic, version, oldest version that reads it; then each block after its length.
_XERIAL_MAGIC = b"\x82SNAPPY\0"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_LENGTH = struct.Struct(">i")
_BLOCK_BYTES = 32 * 1024  # as in Java
#: Maximum compression ratio of snappy: a copy of 64 bytes takes three bytes.
_SNAPPY_RATIO = 22

#: How many bytes of a frame its decoder gets at first, and at most (it copies those that it has not yet decompressed).
_FIRST_STEP = 4 * 1024
_LARGEST_STEP = 64 * 1024


class LargeBlockError(Exception):
    """A block that cannot be decompressed in pieces, and has more bytes than the caller takes."""


class Decompression(Protocol):
    """Decompresses the records of one batch, piece by piece."""

    def read(self, size: int) -> Buffer:
        """Return the next piece: about size bytes, up to ``largest`` for a codec without smaller units; b"" at the end.

        Raises one of BROKEN_DATA_ERRORS, LargeBlockError and MemoryError.
        """


class _Decoder(Protocol):
    """A decompressor of Python's standard library, with the interface of bz2.BZ2Decompressor."""

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes | None: ...

    def decompress(self, data: Buffer, max_length: int, /) -> bytes: ...


class _Gzip:
    """zlib's decompressor with that interface."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(zlib.MAX_WBITS | 16)

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def needs_input(self) -> bool:
        return not self._zlib.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    def decompress(self, data: Buffer, max_length: int, /) -> bytes:
        return self._zlib.decompress(data or self._zlib.unconsumed_tail, max_length)


class _Frames(Decompression):
    """One frame after the other, each by a new decoder.

    A decoder copies the bytes behind its frame. With all of them, a batch of many short frames would take quadratic
    time; so it gets few bytes at first, then twice as many each time.
    """

    def __init__(self, decoder: Callable[[], _Decoder], data: Buffer) -> None:
        self._new = decoder
        self._data = memoryview(data)
        self._at = 0
        self._begin()

    def _begin(self) -> None:
        self._decoder = self._new()
        self._step = _FIRST_STEP

    def read(self, size: int) -> bytes:
        while True:
            if self._decoder.eof:
                self._at -= len(self._decoder.unused_data or b"")
                if self._at == len(self._data):
                    return b""
                self._begin()
            is_fed = self._decoder.needs_input
            data = self._next_bytes() if is_fed else b""
            piece = self._decoder.decompress(data, size)
            if piece:
                return piece
            if is_fed and not data and not self._decoder.eof:
                raise EOFError("the compressed data ends too early")

    def _next_bytes(self) -> bytes:
        found = bytes(self._data[self._at : self._at + self._step])
        self._at += len(found)
        self._step = min(2 * self._step, _LARGEST_STEP)
        return found


class _SnappyBlocks(Decompression):
    """One block after the other: Java's frames, or the plain block that librdkafka and others write."""

    def __init__(self, data: Buffer, largest: int) -> None:
        self._data = memoryview(data)
        self._largest = largest
        self._is_framed = self._data[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC
        self._at = len(_XERIAL_HEADER) if self._is_framed else 0

    def read(self, size: int) -> Buffer:
        if self._at >= len(self._data):
            return b""
        end = self._block_end() if self._is_framed else len(self._data)
        block, self._at = self._data[self._at : end], end
        return _snappy_block(block, self._largest)

    def _block_end(self) -> int:
        (size,) = _LENGTH.unpack_from(self._data, self._at)
        self._at += _LENGTH.size
        follow = len(self._data) - self._at
        if not 0 < size <= follow:
            raise ValueError(f"a snappy block has {size} bytes, but only {follow} bytes follow")
        return self._at + int(size)


def _snappy_block(block: memoryview, largest: int) -> bytearray:
    size = cramjam.snappy.decompress_raw_len(block)
    if size > len(block) * _SNAPPY_RATIO:
        raise ValueError(f"a snappy block of {len(block)} bytes cannot decompress to {size} bytes, as its header says")
    if size > largest:
        raise LargeBlockError(f"a snappy block of {size:,} bytes")
    found = bytearray(size)  # by Python: cramjam would abort the process if there is no memory
    cramjam.snappy.decompress_raw_into(block, found)
    return found


def _snappy_compress(data: Buffer) -> bytes:
    parts: list[Buffer] = [_XERIAL_HEADER]
    view = memoryview(data)
    for start in range(0, len(view), _BLOCK_BYTES):
        block = cramjam.snappy.compress_raw(view[start : start + _BLOCK_BYTES])
        parts += (_LENGTH.pack(len(block)), block)
    return b"".join(parts)


@dataclass(frozen=True, slots=True)
class Codec:
    """number: that in a batch's attributes. decompression: see ``decompression``; None for records as they are."""

    number: int
    compress: Callable[[Buffer], Buffer]
    decompression: Callable[[Buffer, int], Decompression] | None


def _lz4_compress(data: Buffer) -> Buffer:
    return lz4.frame.compress(data, block_linked=False, store_size=False)


def _of_frames(decoder: Callable[[], _Decoder]) -> Callable[[Buffer, int], Decompression]:
    return lambda data, largest: _Frames(decoder, data)


#: By compression.type. Compressing the same data twice produces the same bytes.
CODECS = {
    "none": Codec(0, bytes, None),
    "gzip": Codec(1, lambda data: gzip.compress(data, 6, mtime=0), _of_frames(_Gzip)),
    "snappy": Codec(2, _snappy_compress, _SnappyBlocks),
    "lz4": Codec(3, _lz4_compress, _of_frames(lz4.frame.LZ4FrameDecompressor)),
    "zstd": Codec(4, zstd.compress, _of_frames(zstd.ZstdDecompressor)),
}
_BY_NUMBER = {codec.number: codec.decompression for codec in CODECS.values() if codec.decompression is not None}
#: Raised by Decompression.read() for broken data.
BROKEN_DATA_ERRORS = (
    *(RuntimeError, OSError, EOFError, ValueError),
    *(struct.error, zlib.error, zstd.ZstdError, cramjam.DecompressionError),
)


def decompression(number: int, data: Buffer, largest: int) -> Decompression:
    """Return the decompression of a batch's records; raises KeyError for an unknown codec.

    number: the batch's codec. largest: the maximum size of a decompressed unit that cannot be read in pieces.
    """
    return _BY_NUMBER[number](data, largest)
