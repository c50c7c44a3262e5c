"""Options for the JVMs of tests: brokers, Spark, Kafka Streams programs. Most live for seconds."""

from __future__ import annotations

import os

#: Without the second compiler, which costs more CPU time than it saves here: a broker starts in 8 s instead of 13. Also
#: without the threads of a parallel garbage collector.
OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
#: Environment variables for the options of the dev broker, of Spark's driver, and of the program that builds Spark's
#: command.
VARIABLES = ("KAFKA_OPTS", "SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS")


def use_options() -> None:
    """Have the JVMs that this process and its children start use OPTIONS, unless the environment says otherwise."""
    for name in VARIABLES:
        os.environ.setdefault(name, " ".join(OPTIONS))
