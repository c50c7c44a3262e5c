"""The calls of Spark's state that do not wait for each other; on Spark itself: tests/differential."""

from __future__ import annotations

import pytest

from penstock import StreamsError
from penstock.pipeline.tasks.spark_state import REQUESTS_MAX, SparkState
from tests.pipeline.state_server import Handle, StateSocket


def state(socket: StateSocket) -> SparkState:
    return SparkState(Handle(socket))  # type: ignore[arg-type]


def test_reads_return_what_was_written_before_them() -> None:
    socket = StateSocket()
    blobs = state(socket)
    numbers = range(-3 * REQUESTS_MAX, 3 * REQUESTS_MAX)
    for number in numbers:
        blobs.write("counts", number, b"%d" % number)
    blobs.remove("counts", 7)
    blobs.write("counts", 8, b"")
    found = dict(zip(numbers, blobs.read("counts", numbers), strict=True))
    assert found == {number: b"%d" % number for number in numbers} | {7: None, 8: b""}
    assert blobs.read("others", [7, 8]) == [None, None]
    assert socket.most_waiting == REQUESTS_MAX, "more would not fit into a socket, and fewer would wait for each other"


def test_nothing_is_left_for_sparks_other_calls() -> None:
    socket = StateSocket()
    blobs = state(socket)
    for number in range(10):
        blobs.write("counts", number, b"1")
    blobs.finish()
    assert len(socket.rows) == 10
    with pytest.raises(EOFError):
        socket.read(4)


def test_an_update_that_spark_refuses_is_an_error_at_the_latest_when_it_must_be_complete() -> None:
    blobs = state(StateSocket(refuse=b"bad"))
    blobs.write("counts", 1, b"bad")
    blobs.write("counts", 2, b"good")
    with pytest.raises(StreamsError, match="Spark's state refused a call: the disk is full"):
        blobs.finish()


def test_a_connection_that_ends_is_named() -> None:
    class Ended(StateSocket):
        def read(self, size: int) -> bytes:
            return b""

    blobs = state(Ended())
    with pytest.raises(StreamsError, match="closed its connection; the log of the executor"):
        blobs.read("counts", [1])
