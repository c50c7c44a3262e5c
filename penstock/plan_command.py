"""``penstock plan``: what a new version of a topology means for the state that the earlier one has left."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from penstock.command_options import configuration, examples
from penstock.supervisor.config_loader import load_config
from penstock.supervisor.exit_codes import ExitCode
from penstock.supervisor.topology_gate import FACTS_FILE_NAME, application_directory, plain_facts, read_facts
from penstock.supervisor.topology_source import TopologySource
from penstock.topology.errors import ConfigError
from penstock.topology.topology_plan import Plan, Verdict, compare


@click.command(
    epilog=examples(
        "penstock plan my_app:topology --config penstock.toml",
        "penstock plan my_app:topology --config penstock.toml --json",
        "penstock plan my_app:topology --config penstock.toml --against other-host/topology.json",
    )
)
@click.argument("topology", metavar="MODULE:TOPOLOGY")
@configuration
@click.option(
    "--against",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The topology.json to compare with; default: the one beside this host's state.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(
    topology: str, config_file: Path | None, assignments: tuple[str, ...], against: Path | None, as_json: bool
) -> None:
    """Compare a topology with the one that the application's state is from; nothing is changed.

    The verdict is safe, rebuild these stores (they are restored from their changelogs at the next start), or refuse:
    `penstock run` refuses it too, with the same exit code.
    """
    config = load_config(config_file, os.environ, assignments)
    config.require("application.id")
    file = against or application_directory(config) / FACTS_FILE_NAME
    earlier = read_facts(file)
    new = plain_facts(TopologySource.of(topology).load(config), config)
    if earlier is None:
        raise ConfigError(
            f"There is nothing to compare with: {file} does not exist. `penstock run` writes it; state.dir and "
            "application.id say where. --against takes another host's."
        )
    found = compare(earlier, new)
    click.echo(_json(found) if as_json else _text(found))
    raise SystemExit(ExitCode.TOPOLOGY if found.verdict is Verdict.REFUSE else ExitCode.OK)


def _json(found: Plan) -> str:
    findings = [{"verdict": f.verdict.name.lower(), "subject": f.subject, "text": f.text} for f in found.findings]
    whole = {"verdict": found.verdict.name.lower(), "rebuild": list(found.rebuild), "findings": findings}
    return json.dumps(whole, indent=2)


def _text(found: Plan) -> str:
    lines = [
        f"{f.verdict.name.lower():8} {f.subject}: {f.text}" for f in sorted(found.findings, key=lambda f: -f.verdict)
    ]
    return "\n".join([*lines, f"Verdict: {found.summary()}"])
