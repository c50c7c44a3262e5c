"""How the JVMs of tests run: brokers, Spark, Kafka Streams programs. Most live for seconds."""

from __future__ import annotations

import os

#: Without the second compiler, whose code comes too late to make up for the CPU time that it takes: a broker's start
#: takes 8 s instead of 13. And without the threads of a parallel garbage collector.
OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
#: What the dev broker, Spark's driver and the program that makes Spark's command take options from.
VARIABLES = ("KAFKA_OPTS", "SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS")


def use_options() -> None:
    """Have the JVMs that this process and its children start use OPTIONS, unless the environment says otherwise."""
    for name in VARIABLES:
        os.environ.setdefault(name, " ".join(OPTIONS))
