"""``penstock bench``: the benchmarks, which are in the source tree and not in the installed package."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import click

from penstock.cli.options import examples
from penstock.topology.errors import PenstockError

ROOT = Path(__file__).resolve().parent.parent.parent


class NoBenchmarksError(PenstockError):
    """The installation does not contain the benchmarks."""


@click.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
    epilog=examples(
        "penstock bench --help", "penstock bench --quick", "penstock bench --only count,join --json out.json"
    ),
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(arguments: tuple[str, ...]) -> None:
    """Measure Penstock against Kafka Streams; only from the source tree."""
    if not (ROOT / "benchmarks" / "__main__.py").is_file():
        raise NoBenchmarksError(
            "The benchmarks are not part of the installed package. Clone the repository, install it from there "
            "(pip install -e .), and run `penstock bench` again."
        )
    sys.path.insert(0, str(ROOT))
    main: click.Command = importlib.import_module("benchmarks.__main__").main
    main.main(list(arguments), prog_name="penstock bench")
