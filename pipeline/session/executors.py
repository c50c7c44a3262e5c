"""Checks before the first micro-batch that the executors of a cluster have the same Penstock as the driver."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import penstock_distribution
from penstock.topology.errors import StreamsError

from . import executor_probe

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

#: How many tasks look for executors, for each core that Spark knows.
LOOKS_FOR_EACH_CORE = 2
#: After so many seconds without an answer of the executors it is said that they are waited for, and again and again.
SAY_SECONDS = 20.0
ADVICE = (
    "Install penstock-streams[spark] in the same version there, or send a virtual environment: --archives, or "
    "spark.archives and spark.pyspark.python; see docs/spark.md, On a cluster."
)


class ExecutorError(StreamsError):
    """An executor has no Penstock, or another one than the driver."""


def require_penstock_on_executors(session: SparkSession) -> None:
    """Raise ExecutorError if an executor that runs now cannot import Penstock, or has another version of it.

    Executors that share the driver's process are not asked.
    """
    context = session.sparkContext
    if re.fullmatch(r"local(\[.*)?", context.master or ""):
        return
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(executor_probe)  # type: ignore[no-untyped-call]
    try:
        looks = context.defaultParallelism * LOOKS_FOR_EACH_CORE
        with _saying_that_it_waits(context):
            found = set(context.parallelize(range(looks), looks).mapPartitions(executor_probe.probe).collect())
    except (Py4JError, ConnectionError) as error:
        raise ExecutorError(f"The executors of {context.master} could not be asked for Penstock: {error}") from error
    finally:
        cloudpickle.unregister_pickle_by_value(executor_probe)  # type: ignore[no-untyped-call]
    version = penstock_distribution.version()
    for host, there, why in sorted(found, key=str):
        if there is None:
            raise ExecutorError(f"An executor on {host} cannot import Penstock ({why}). {ADVICE}")
        if there != version:
            raise ExecutorError(f"An executor on {host} has Penstock {there}, but the driver {version}. {ADVICE}")


@contextmanager
def _saying_that_it_waits(context: SparkContext) -> Iterator[None]:
    """Spark itself waits without a limit, and without a word at its log level ERROR."""
    done = threading.Event()

    def say() -> None:
        while not done.wait(SAY_SECONDS):
            known = context._jsc.sc().statusTracker().getExecutorInfos()
            log.warning(
                "Waiting for the executors of %s, of which %d run. If none come, the cluster has no worker with the "
                "cores and the memory that spark.executor.cores and spark.executor.memory ask for; see %s",
                context.master,
                len(known) - 1,  # the driver is one of them
                context.uiWebUrl or "the cluster's page",
            )

    saying = threading.Thread(target=say, name="waiting for executors", daemon=True)
    saying.start()
    try:
        yield
    finally:
        done.set()
        saying.join()
