"""``penstock plan``: the effect of a new version of a topology on the state of the earlier one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import click

from penstock.cli.options import Settings, configuration, examples, print_json
from penstock.supervisor.exit_codes import ExitCode
from penstock.supervisor.source.state_places import application_directory, left_behind
from penstock.supervisor.source.topology_gate import FACTS_FILE_NAME, plain_facts, read_facts
from penstock.supervisor.source.topology_source import TopologySource
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import ConfigError, StreamsError
from penstock.topology.graph.topology_facts import Facts, internal_names
from penstock.topology.graph.topology_plan import Plan, Verdict, combined, compare, compare_names, compare_reads

#: Time limit for the group's response, in ms. Mostly the file beside the state is enough.
GROUP_TIMEOUT_MS = 5_000


@dataclass(frozen=True, slots=True)
class Comparison:
    """A description of what the topology was compared with, and the result; None: no comparison was possible."""

    what: str
    plan: Plan | None


@click.command(
    epilog=examples(
        "penstock plan my_app:topology --config penstock.toml",
        "penstock plan my_app:topology --config penstock.toml --json",
        "penstock plan my_app:topology --config penstock.toml --against other-host/topology.json",
        "penstock plan my_app:topology --engine spark",
    )
)
@click.argument("topology", metavar="MODULE:TOPOLOGY")
@configuration
@click.option(
    "--against",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Compare only with this topology.json; default: with the one beside this host's state, and with the group.",
)
@click.option("--offline", is_flag=True, help="Do not connect to the brokers for the group's topology.")
@click.option(
    "--engine",
    type=click.Choice(["local", "spark"]),
    default="local",
    show_default=True,
    help="With spark: the behavior of each operator there.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(topology: str, settings: Settings, against: Path | None, offline: bool, engine: str, as_json: bool) -> None:
    """Compare a topology with the running one and the one that created the state; changes nothing.

    The verdict is one of: safe; rebuild (the named stores are restored from their changelogs at the next start);
    refuse. `penstock run`, too, refuses a topology that does not fit this host's state, with the same exit code.

    With --engine spark it is compared with the local engine: the results of each operator are identical, coarser (and
    how) or refused (and why). The exit code is 3 if one is refused.
    """
    if engine == "spark":
        if against is not None or offline:
            raise click.UsageError("--against and --offline are for --engine local: Spark's checkpoint is not read.")
        _print_capabilities(topology, settings.load(), as_json)
        return
    config = settings.load_located()
    new = plain_facts(TopologySource.of(topology).load_for_command(config), config)
    made = [
        _with_file(application_directory(config) / FACTS_FILE_NAME, new, config)
        if against is None
        else _with_given(against, new)
    ]
    if against is None and not offline and config["bootstrap.servers"]:
        made += with_group(config, new)
    found = combined(one.plan for one in made if one.plan is not None)
    if all(one.plan is None for one in made):
        tried = "; ".join(one.what for one in made)
        raise ConfigError(
            f"There is nothing to compare with: {tried}. `penstock run` writes the file, in state.dir/application.id; "
            "--against takes a file from another host."
        )
    click.echo(_json(found, made) if as_json else _text(found, made))
    raise SystemExit(ExitCode.TOPOLOGY if found.verdict is Verdict.REFUSE else ExitCode.OK)


def _print_capabilities(topology: str, config: StreamsConfig, as_json: bool) -> None:
    from penstock.pipeline.queries.capabilities import Capability, report_capabilities

    report = report_capabilities(TopologySource.of(topology).load_for_command(config), config)
    if as_json:
        print_json(report.as_json())
    else:
        click.echo(str(report))
    if report.capability is Capability.REFUSED:
        raise SystemExit(ExitCode.TOPOLOGY)


def _with_file(file: Path, new: Facts, config: StreamsConfig) -> Comparison:
    earlier = read_facts(file)
    if earlier is None:
        left = left_behind(config)
        return Comparison(f"{file} does not exist{left and f'; {left}'}", None)
    return Comparison(str(file), compare(earlier, new))


def _with_given(file: Path, new: Facts) -> Comparison:
    earlier = read_facts(file, Path.read_text)  # another user may have copied it here
    assert earlier is not None  # click has checked that it exists
    return Comparison(str(file), compare(earlier, new))


def with_group(config: StreamsConfig, new: Facts) -> list[Comparison]:
    """Return the comparisons with the topologies of the group's running members, or of a streams group's broker."""
    from penstock.workers.group.assignment.described_members import (  # these take a while to import
        facts_of_member,
        topics_read,
    )
    from penstock.workers.thread.client_supplier import KafkaClientSupplier

    application_id: str = config["application.id"]
    name = f"the group {application_id}"
    try:
        with KafkaClientSupplier(config).get_offsets_reader(f"{application_id}-plan", GROUP_TIMEOUT_MS) as reader:
            group = reader.describe()
    except StreamsError as error:
        return [Comparison(f"{name} could not be read: {str(error).rstrip('.')}", None)]
    if group.topics is not None:
        plan = compare_names(group.topics, internal_names(new, application_id))
        assignor = f", which assigns tasks with {group.assignor}" if group.assignor else ""
        return [Comparison(f"{name}: the names of its topics, as its broker knows them{assignor}", plan)]
    if not group.has_members:
        return [Comparison(f"{name} has no members", None)]
    if group.protocol == "consumer":
        return [Comparison(f"{name} is a consumer group: its members are no Kafka Streams application", None)]
    known = [facts for member in group.members if (facts := facts_of_member(member)) is not None]
    distinct = [facts for number, facts in enumerate(known) if facts not in known[:number]]
    if not distinct and (reads := topics_read(group)):
        plan = compare_reads(reads, internal_names(new, application_id))
        return [Comparison(f"{name}: the topics that the tasks of its {len(group.members)} members read", plan)]
    if not distinct:
        return [Comparison(f"{name}: its {len(group.members)} members do not report their topology", None)]
    what = f"{name}: {len(known)} of {len(group.members)} members"
    if len(distinct) > 1:
        what += f", which run {len(distinct)} topologies"
    return [Comparison(what, combined(compare(facts, new) for facts in distinct))]


def _json(found: Plan, made: Iterable[Comparison]) -> str:
    findings = [{"verdict": f.verdict.name.lower(), "subject": f.subject, "text": f.text} for f in found.findings]
    compared = [{"with": one.what, "verdict": one.plan.verdict.name.lower() if one.plan else None} for one in made]
    verdict = found.verdict.name.lower()
    return json.dumps(
        {"verdict": verdict, "rebuild": list(found.rebuild), "findings": findings, "compared": compared}, indent=2
    )


def _text(found: Plan, made: Iterable[Comparison]) -> str:
    lines = [
        f"{f.verdict.name.lower():8} {f.subject}: {f.text}" for f in sorted(found.findings, key=lambda f: -f.verdict)
    ]
    compared = [f"{'Compared with' if one.plan else 'Not compared:'} {one.what}" for one in made]
    return "\n".join([*lines, *compared, f"Verdict: {found.summary()}"])
