"""Partitions equal those of Kafka's default partitioner."""

from __future__ import annotations

import pytest

from penstock import Serdes, Windowed
from penstock.topology.context.partitioners import WindowedStreamPartitioner, murmur2, partition_for_key
from penstock.topology.serdes.windowed_serdes import TimeWindowedSerde


@pytest.mark.parametrize(
    ("key", "expected"),
    [  # of Kafka's own UtilsTest
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_kafkas(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected % 2**32


def test_a_windowed_key_goes_to_the_partition_of_its_inner_key() -> None:
    partition = WindowedStreamPartitioner(TimeWindowedSerde(Serdes.string()))
    expected = {partition_for_key(f"k{i}".encode(), 5) for i in range(20)}
    assert expected == set(range(5))
    for i in range(20):
        assert partition("out", Windowed(f"k{i}", i, i + 1), None, 5) == partition_for_key(f"k{i}".encode(), 5)
