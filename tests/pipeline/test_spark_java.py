"""The standard error of Spark's Java."""

from __future__ import annotations

import os

import pytest

from penstock.pipeline.java.spark_java import pass_on, reason, without_chatter

WORKER = b"Streaming TransformWithStateInPandas Python worker"


def test_chatter_is_removed_with_its_empty_lines_and_nothing_else() -> None:
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


def test_greetings_are_removed() -> None:
    told = [
        b"WARNING: Using incubator modules: jdk.incubator.vector\n",
        b"Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties\n",
        b"26/11/25 17:49:07 WARN Utils: Your hostname, vm, resolves to a loopback address: 127.0.0.1\n",
        b"26/11/25 17:49:07 WARN Utils: Set SPARK_LOCAL_IP if you need to bind to another address\n",
        b"26/11/25 17:49:08 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform\n",
        b'Setting default log level to "WARN".\n',
        b'Setting Spark log level to "ERROR".\n',
        b"To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).\n",
        b"26/11/25 17:49:09 WARN Utils: Service 'SparkUI' could not bind on port 4040. Attempting port 4041.\n",
    ]
    assert list(without_chatter(told)) == told[-1:]


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (
            [b"Error: Master must either be yarn or start with spark, k8s, or local\n", b"Run with --help\n"],
            "Master must",
        ),
        ([b"org.apache.spark.SparkException: No master\n", b"\tat org.apache.spark.A.b(A.scala:1)\n"], "No master"),
        ([b"Unrecognized option\n"], "Unrecognized option"),
        ([], "Spark's Java has ended"),
    ],
)
def test_the_reason_of_a_failed_start_is_javas_last_message(last: list[bytes], expected: str) -> None:
    assert reason(last).startswith(expected)


def test_a_closed_reader_does_not_block_java() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    source_end, sink_end = os.pipe()
    with os.fdopen(source_end, "rb") as source, os.fdopen(sink_end, "wb", buffering=0) as sink:
        sink.write(b"one\ntwo\n")
        sink.close()
        pass_on(source, writing)
        assert source.closed, "all of it was read"
    os.close(writing)
