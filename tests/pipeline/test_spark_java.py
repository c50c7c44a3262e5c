"""What Spark's Java writes to its standard error."""

from __future__ import annotations

import os

from penstock.spark_java import pass_on, without_chatter

WORKER = b"Streaming TransformWithStateInPandas Python worker"


def test_chatter_is_left_out_with_its_empty_lines_and_nothing_else() -> None:
    told = [
        b"ERROR Utils: Aborting task\n",
        b"Starting " + WORKER + b".\n",
        b"\n",
        b"\n",
        WORKER + b" Starting execution of UDF: <function f at 0x7f>.\n",
        b"Traceback (most recent call last):\n",
        b"\n",
        b"said by Streaming TransformWithStateInPandas Python worker\n",
    ]
    assert list(without_chatter(told)) == [told[0], b"\n", told[5], b"\n", told[7]]


def test_a_reader_that_is_gone_does_not_keep_java_waiting() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    source_end, sink_end = os.pipe()
    with os.fdopen(source_end, "rb") as source, os.fdopen(sink_end, "wb", buffering=0) as sink:
        sink.write(b"one\ntwo\n")
        sink.close()
        pass_on(source, writing)
        assert source.read() == b"", "all of it was read"
    os.close(writing)
