"""The versions of Kafka that the dev broker can run: one lock file of jars per version, and the logging of its JVM.

``broker.lock`` is the newest. ``broker-<version>.lock`` is an older one, for tests against versions that clusters still
run.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from penstock.pipeline.java.jar_lock import LockedJar, fetch_jars, read_lock
from penstock.topology.errors import PenstockError

#: The environment variable with the version for brokers that do not name theirs, e.g. for a whole test run.
VERSION_VARIABLE = "KAFKA_VERSION"
LOCK_FILES = sorted(Path(__file__).parent.glob("broker*.lock"))

LOG4J2_CONFIG = """\
status=WARN
# Otherwise Log4j ends at SIGTERM, and what a broker does until its own end is missing, e.g. markers that it drops.
shutdownHook=disable
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d{ISO8601} %-5p [%t] %m (%c{1})%n%ex
rootLogger.level=INFO
rootLogger.appenderRef.console.ref=console
# Each of these writes hundreds of lines at the start, or one for each partition.
logger.config.name=org.apache.kafka.common.config.AbstractConfig
logger.config.level=WARN
logger.partition.name=kafka.cluster
logger.partition.level=WARN
logger.log.name=org.apache.kafka.storage.internals.log
logger.log.level=WARN
logger.logmanager.name=kafka.log
logger.logmanager.level=WARN
"""
#: The same for Kafka 3, which uses log4j 1.
LOG4J_CONFIG = """\
log4j.rootLogger=INFO, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %-5p [%t] %m (%c{1})%n
log4j.logger.kafka.server.KafkaConfig=WARN
log4j.logger.org.apache.kafka.common.config.AbstractConfig=WARN
log4j.logger.kafka.cluster=WARN
log4j.logger.org.apache.kafka.storage.internals.log=WARN
log4j.logger.kafka.log=WARN
"""


class UnknownKafkaVersionError(PenstockError):
    """There is no lock file for this version of Kafka; the message lists the available ones."""


@dataclass(frozen=True, slots=True)
class KafkaDistribution:
    """One version of Kafka. jars: those of its lock file."""

    version: str
    jars: tuple[LockedJar, ...]

    def class_path(self) -> str:
        """Return the JVM's class path; downloads missing jars. Raises JarError."""
        return os.pathsep.join(str(jar) for jar in fetch_jars(self.jars))

    def write_logging_config(self, directory: Path) -> None:
        """Write the file that ``logging_option`` names; raises OSError."""
        self._logging_file(directory).write_text(LOG4J2_CONFIG if self._has_log4j2 else LOG4J_CONFIG, "utf-8")

    def logging_option(self, directory: Path) -> str:
        """Return the JVM's option for a log on its standard output."""
        file = self._logging_file(directory)
        return f"-Dlog4j2.configurationFile={file}" if self._has_log4j2 else f"-Dlog4j.configuration={file.as_uri()}"

    @property
    def _has_log4j2(self) -> bool:
        return _order(self.version) >= (4,)

    def _logging_file(self, directory: Path) -> Path:
        return directory / ("log4j2.properties" if self._has_log4j2 else "log4j.properties")


@cache
def distributions() -> dict[str, KafkaDistribution]:
    """Return the available versions, oldest first."""
    found = [_read(file) for file in LOCK_FILES]
    return {kafka.version: kafka for kafka in sorted(found, key=lambda kafka: _order(kafka.version))}


def newest() -> str:
    """Return the newest version."""
    return list(distributions())[-1]


def preferred() -> str:
    """Return the version that new brokers use: that of $KAFKA_VERSION, or else the newest."""
    return os.environ.get(VERSION_VARIABLE) or newest()


def distribution(version: str) -> KafkaDistribution:
    """Return a version of Kafka; raises UnknownKafkaVersionError."""
    try:
        return distributions()[version]
    except KeyError:
        there_are = ", ".join(distributions())
        raise UnknownKafkaVersionError(f"there are no jars of Kafka {version!r}: choose one of {there_are}") from None


def _read(lock_file: Path) -> KafkaDistribution:
    jars = tuple(read_lock(lock_file))
    return KafkaDistribution(next(jar.version for jar in jars if jar.name.startswith("kafka_2")), jars)


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
