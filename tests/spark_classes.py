"""``python -m tests.spark_classes``: print the options with which a JVM of Spark starts in half of its CPU time.

It maps an archive of loaded classes (penstock.dev.class_data). The first time in an environment a small count runs on
Spark, whose JVM writes the archive when it ends. Without a Java for Spark these are the options of all JVMs of tests.
"""

from __future__ import annotations

import os
import sys
import tempfile
import uuid
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock import PenstockError, StreamsBuilder
from penstock.dev.class_data import ClassDataArchive, keep_archives
from penstock.pipeline.session.spark_session import require_jdk, require_pyspark, spark_session
from penstock.pipeline.spark_streams import SparkStreams
from tests import brokers, short_lived_jvms
from tests.topics import create_topics, delete_topics

#: How long the JVM may take to end: it writes 150 MB.
END_SECONDS = 600.0


def spark_home() -> Path:
    """Return the folder of this environment's Spark; raises SparkUnavailableError."""
    require_pyspark()
    from pyspark.find_spark_home import _find_spark_home

    return Path(_find_spark_home())


def archive() -> ClassDataArchive:
    """Return the archive for this environment's Spark; raises SparkUnavailableError."""
    jars = sorted((spark_home() / "jars").glob("*.jar"))
    return ClassDataArchive("spark", require_jdk(), os.pathsep.join(map(str, jars)))


def write(options: list[str]) -> None:
    """Count on Spark, in a JVM with these options, and wait until it has ended."""
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join([*short_lived_jvms.OPTIONS, *options])
    servers = os.environ.get("KAFKA_BOOTSTRAP_SERVERS") or brokers.plain().bootstrap_servers
    admin, name = AdminClient({"bootstrap.servers": servers}), f"classes-{uuid.uuid4().hex[:8]}"
    sink = f"{name}-out"
    create_topics(admin, NewTopic(name, 1, 1), NewTopic(sink, 1, 1))
    builder = StreamsBuilder()
    builder.stream(name).group_by_key().count(store="counts").to_stream().to(sink)
    session = spark_session(name, "local[2]")
    process = session.sparkContext._gateway.proc  # type: ignore[union-attr]
    with tempfile.TemporaryDirectory() as checkpoint:
        config = {"application.id": name, "bootstrap.servers": servers, "state.dir": checkpoint}
        producer = Producer({"bootstrap.servers": servers})
        with SparkStreams(builder, config, session, checkpoint=f"{checkpoint}/checkpoint") as streams:
            for _ in range(2):
                producer.produce(name, b"1", b"1")
                producer.flush()
                streams.process_available()
        session.stop()
        process.stdin.close()  # Spark's Java ends when it sees that its Python has
        process.wait(END_SECONDS)
    delete_topics(admin, name, sink)


def options() -> list[str]:
    """Return the options, and write the archive if there is none."""
    try:
        found = archive()
    except PenstockError as error:
        print(error, file=sys.stderr)
        return list(short_lived_jvms.OPTIONS)
    if not found.using():
        with tempfile.TemporaryDirectory() as directory:
            write(found.using_or_writing(Path(directory)))
            keep_archives(Path(directory))
    return [*short_lived_jvms.OPTIONS, *found.using()]


def main() -> None:
    """Print the options on the standard output; what Spark prints goes to the standard error."""
    output = os.dup(1)
    os.dup2(2, 1)
    os.write(output, " ".join(options()).encode())


if __name__ == "__main__":
    main()
