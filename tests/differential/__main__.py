"""``python -m tests.differential PATH…``: runs golden cases on Spark and locally, and compares the results.

A path is a case or a folder of cases. $KAFKA_BOOTSTRAP_SERVERS names the broker, else a dev broker is started. Prints
one line for each case that differs, then the cases left out and why, and ends with "N of M cases agree". Exit status 0
only if all do, 2 if there is none.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock import PenstockError, StreamsConfig
from penstock.dev.dev_broker import DevBroker
from penstock.pipeline.queries.capabilities import Capability, report_capabilities
from penstock.pipeline.session.spark_session import spark_session
from tests.differential.engines import SparkEngine, compare, depends_on_buckets, not_comparable
from tests.goldens import interpreter
from tests.goldens.case import Case, files, read
from tests.goldens.compare import case_config


def left_out(case: Case, buckets: int) -> str | None:
    """Return why a case is not compared, None if it is."""
    reason = not_comparable(case)
    if reason is None and depends_on_buckets(case, buckets):
        reason = "the report says that its results depend on the buckets"
    if reason is None:
        report = report_capabilities(interpreter.build(case), StreamsConfig(case_config(case)))
        if report.capability is Capability.REFUSED:
            reason = "the report refuses it"
    return reason


@contextmanager
def broker() -> Iterator[str]:
    """The broker to use."""
    given = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if given:
        yield given
        return
    with tempfile.TemporaryDirectory() as directory, DevBroker("differential", Path(directory)) as started:
        yield started.bootstrap_servers


def run(paths: list[Path], batches: int, buckets: int, verbose: bool) -> int:
    """Compare cases; return the exit status. verbose: print a line for each case, not only for those that differ."""
    skipped: Counter[str] = Counter()
    total = agree = 0
    with broker() as servers, tempfile.TemporaryDirectory() as checkpoints:
        spark = spark_session("differential", "local[2]")
        try:
            engine = SparkEngine(spark, servers, checkpoints)
            with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends it with the figures so far
                for path in files(paths):
                    case = read(path)
                    reason = left_out(case, buckets)
                    if reason is not None:
                        skipped[reason] += 1
                        continue
                    began = time.monotonic()
                    difference = difference_of(case, engine, batches, buckets)
                    total += 1
                    agree += difference is None
                    if difference is not None:
                        print(f"{path.stem}: {difference}", flush=True)
                    elif verbose:
                        print(f"{path.stem}: agrees, {time.monotonic() - began:.1f} s", flush=True)
        finally:
            spark.stop()
    for reason, count in skipped.items():
        print(f"{count} left out: {reason}")
    print(f"{agree} of {total} cases agree")
    return 2 if not total else 0 if agree == total else 1


def difference_of(case: Case, engine: SparkEngine, batches: int, buckets: int) -> str | None:
    """Return the first difference of a case; a failure of either engine is one too."""
    try:
        return compare(case, engine, batches, buckets)
    except PenstockError as error:
        return f"{type(error).__name__}: {error}"


def main() -> int:
    """Read the command line, compare; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description="Compare Spark with local runs.")
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a case, or a folder of cases")
    parser.add_argument("--batches", type=int, default=1, help="into how many micro-batches the input is cut (1)")
    parser.add_argument("--buckets", type=int, default=1, help="penstock.spark.buckets (1)")
    parser.add_argument("-v", "--verbose", action="store_true", help="print the cases that agree, too")
    options = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL)
    return run(options.paths, options.batches, options.buckets, options.verbose)


if __name__ == "__main__":
    sys.exit(main())
