"""Offsets in a text file, for stores that cannot keep their own (Kafka Streams: OffsetCheckpoint, ``.checkpoint``).

The format is Kafka Streams' version 0: the version, the number of entries, and for each a line ``topic partition
offset``. Penstock's own stores keep their offset with their rows; a user's custom store may not.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from penstock.topology.errors import ProcessorStateError
from penstock.topology.records import TopicPartition

from .own_files import read_own, write_atomically

CHECKPOINT_FILE_NAME = ".checkpoint"
VERSION = 0
#: Means that there is state with an unknown offset (Kafka: OFFSET_UNKNOWN).
OFFSET_UNKNOWN = -4


class OffsetCheckpoint:
    """One checkpoint file. It is replaced atomically: a crash leaves the old or the new file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace the file's offsets; without offsets, remove the file.

        Raises ValueError for a negative offset other than OFFSET_UNKNOWN, ProcessorStateError if the disk is full or
        fails; the old file then stays.
        """
        for partition, offset in offsets.items():
            if offset < 0 and offset != OFFSET_UNKNOWN:
                raise ValueError(f"Attempted to write the negative offset {offset} of {partition} to {self.path}")
        if not offsets:
            self.delete()
            return
        lines = [str(VERSION), str(len(offsets)), *(f"{p.topic} {p.partition} {at}" for p, at in offsets.items())]
        write_atomically(self.path, "\n".join(lines) + "\n")

    def read(self) -> dict[TopicPartition, int]:
        """Return the file's offsets, none if there is no file; raises ProcessorStateError if it is damaged."""
        try:
            return _parse(read_own(self.path).splitlines())
        except FileNotFoundError:
            return {}
        except (ValueError, IndexError) as error:  # bytes that are not text raise ValueError, too
            raise ProcessorStateError(f"The checkpoint file {self.path} is damaged: {error}") from error

    def delete(self) -> None:
        """Remove the file if it exists."""
        self.path.unlink(missing_ok=True)


def _parse(lines: list[str]) -> dict[TopicPartition, int]:
    if int(lines[0]) != VERSION:
        raise ValueError(f"unknown version {lines[0]}")
    offsets = {}
    for line in lines[2:]:
        topic, partition, offset = line.split()
        offsets[TopicPartition(topic, int(partition))] = int(offset)
    if len(offsets) != int(lines[1]):
        raise ValueError(f"expected {lines[1]} entries but found {len(offsets)}")
    return {partition: offset for partition, offset in offsets.items() if offset >= 0 or offset == OFFSET_UNKNOWN}
