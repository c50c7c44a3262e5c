"""Whether a session has Spark's Kafka connector: all its jars, and of this Spark's version.

Without this check a missing jar is a NoClassDefFoundError somewhere in a query, and one of another version a
NoSuchMethodError in the middle of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from penstock.topology.errors import StreamsError

#: A class of each jar that the connector is made of, by the jar's name.
CLASSES: Mapping[str, str] = {
    "spark-sql-kafka-0-10": "org.apache.spark.sql.kafka010.KafkaSourceProvider",
    "spark-token-provider-kafka-0-10": "org.apache.spark.kafka010.KafkaTokenUtil",
    "kafka-clients": "org.apache.kafka.clients.consumer.KafkaConsumer",
    "commons-pool2": "org.apache.commons.pool2.impl.GenericKeyedObjectPool",
}
CONNECTOR = "spark-sql-kafka-0-10"
#: The connector's file: for which Scala, and of which Spark.
_FILE = re.compile(rf"{CONNECTOR}_(?P<scala>[\d.]+)-(?P<spark>\d+\.\d+)[^/]*\.jar$")


class ConnectorError(StreamsError):
    """A Spark session lacks Kafka's connector, a jar of it, or has one of another version."""


def require_connector(spark: SparkSession) -> None:
    """Raise ConnectorError, naming the jar and the fix, unless a session has a connector that fits it."""
    jvm: Any = spark.sparkContext._jvm
    loader = jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
    scala = jvm.scala.util.Properties.versionNumberString()
    found: dict[str, Any] = {}
    for jar, name in CLASSES.items():
        try:
            found[jar] = jvm.java.lang.Class.forName(name, False, loader)
        except Py4JJavaError:  # ClassNotFoundException
            continue
    missing = [jar for jar in CLASSES if jar not in found]
    if missing:
        raise ConnectorError(f"The Spark session lacks the jars {', '.join(missing)}. {_advice(spark.version, scala)}")
    source = found[CONNECTOR].getProtectionDomain().getCodeSource()
    check_version("" if source is None else source.getLocation().getPath(), spark.version, scala)


def check_version(connector: str, spark: str, scala: str) -> None:
    """Raise ConnectorError if a connector's file is for another Spark or Scala; one with another name is accepted."""
    match = _FILE.search(connector)
    wanted = {"scala": ".".join(scala.split(".")[:2]), "spark": ".".join(spark.split(".")[:2])}
    if match is not None and match.groupdict() != wanted:
        raise ConnectorError(
            f"{match[0]} is not for Spark {spark} with Scala {wanted['scala']}. {_advice(spark, scala)}"
        )


def _advice(spark: str, scala: str) -> str:
    artifact = f"org.apache.spark:{CONNECTOR}_{'.'.join(scala.split('.')[:2])}:{spark}"
    return (
        f"Make the session with spark.jars.packages={artifact}, or without your own session, so that Penstock uses "
        "the jars of its lock file."
    )
