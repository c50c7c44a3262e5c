"""``python -m benchmarks.sinks``: rows a second from a topic into PostgreSQL, by append and by upsert.

Everything runs on this machine: the broker, an application of two stream threads, and a PostgreSQL that waits for its
disk (fsync). The rate is that from the first rows to the last. Wrong rows end it with exit code 1.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import click
from confluent_kafka.admin import AdminClient
from rich.console import Console
from rich.table import Table

from benchmarks.data import FIRST_TIMESTAMP_MS, Workload, load_topic
from benchmarks.measure import BenchmarkError
from benchmarks.recovery import Run, running
from benchmarks.report import PAGE_WIDTH
from benchmarks.sink_topologies import DSN_VARIABLE, TABLE
from benchmarks.systems import THREADS, Penstock, broker
from penstock.topology.errors import PenstockError
from tests.postgres_server import PostgresDatabase, postgres_server
from tests.topics import delete_topics_of

MODES = ("append", "upsert")
console = Console(stderr=True)


class SinkTopologies(Penstock):
    """Penstock with the topologies of sinks."""

    module = "benchmarks.sink_topologies"


@dataclass(frozen=True, slots=True)
class Written:
    """One run: rows per second, and the CPU time of the application, in seconds a million rows."""

    rate: float
    cpu_seconds: float


def write(servers: str, directory: Path, workload: Workload, mode: str, database: PostgresDatabase) -> Written:
    """Write all records of the workload's topic as rows. Raises BenchmarkError for wrong rows."""
    name = f"benchmark-{uuid.uuid4().hex[:8]}-{mode}"
    home = directory / name
    home.mkdir()
    os.environ[DSN_VARIABLE] = database.dsn
    run = Run(servers, SinkTopologies(), name, home, workload.topic, topology=mode, records=workload.records)

    def done() -> int:
        if not database.rows("SELECT to_regclass('penstock_offsets') IS NOT NULL")[0][0]:
            return 0
        return int(database.rows("SELECT coalesce(sum(next_offset), 0) FROM penstock_offsets")[0][0])

    with running(run):
        program = run.start(THREADS)
        run.wait_until(lambda: done() > 0, "the first rows")
        first, begin = done(), time.monotonic()
        program.look()
        cpu = program.cpu_seconds
        run.wait_until(lambda: done() >= workload.records, "the last rows")
        seconds = time.monotonic() - begin
        program.look()
        cpu = program.cpu_seconds - cpu
    delete_topics_of(AdminClient({"bootstrap.servers": servers, "log_level": 3}), name)
    check(workload, mode, database)
    written = workload.records - first
    return Written(written / seconds, cpu / written * 1e6)


def check(workload: Workload, mode: str, database: PostgresDatabase) -> None:
    """Raise BenchmarkError unless the table has each purchase once, or the last one of each user."""
    wanted: Collection[int] = range(workload.records)
    if mode == "upsert":
        wanted = {user: number for number, user in enumerate(workload.users())}.values()
    ((rows, checksum),) = database.rows(f"SELECT count(*), coalesce(sum(ts), 0) FROM {TABLE}")
    if (rows, int(checksum)) != (len(wanted), sum(FIRST_TIMESTAMP_MS + number for number in wanted)):
        raise BenchmarkError(f"{TABLE} has {rows} rows instead of {len(wanted)}, or other ones")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--records", type=click.IntRange(min=100_000), default=5_000_000, show_default=True)
@click.option("--keys", type=click.IntRange(min=1), default=100_000, show_default=True)
@click.option("--only", type=click.Choice(MODES), help="One of the two.")
def main(records: int, keys: int, only: str | None) -> None:
    """Write a topic into PostgreSQL."""
    output = Console()
    if not output.is_terminal:
        output.width = PAGE_WIDTH
    workload = Workload(records, keys=keys)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="penstock-sinks-") as work,
            broker("sinks", Path(work)) as servers,
            postgres_server(fsync=True) as server,
        ):
            load_topic(servers, workload.topic, workload.purchases(), records)
            found = Table("", "rows/s", "CPU s of the application a million rows")
            for mode in MODES if only is None else (only,):
                with server.database() as database:
                    one = write(servers, Path(work), workload, mode, database)
                found.add_row(mode, f"{one.rate:,.0f}", f"{one.cpu_seconds:.1f}")
            output.print(f"{records:,} records of {keys:,} keys into PostgreSQL", found, sep="\n")
    except (BenchmarkError, PenstockError) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the broker and the programs are stopped
    sys.exit(main())
