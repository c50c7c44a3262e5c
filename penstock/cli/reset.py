"""``penstock reset``: reset an application."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import click
from typing_extensions import override

from penstock.cli.options import Duration, Settings, as_json, configuration, examples, print_json
from penstock.cli.running_application import NotRunningError, find
from penstock.cli.status_view import counted, show, table
from penstock.supervisor.offline.application_reset import ApplicationReset, Move, Target
from penstock.supervisor.source.topology_source import TopologySource
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.context.sink_interfaces import Sink
from penstock.topology.errors import StreamsError
from penstock.topology.graph.processor_topology import ProcessorTopology
from penstock.workers.tasks.task_sinks import sinks_of


class Moment(click.ParamType[int]):
    """A date and time in ISO 8601, by default in the local time zone; converted to ms since 1970."""

    name = "datetime"

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else int(datetime.fromisoformat(value).timestamp() * 1000)
        except ValueError:
            self.fail(f"{value!r} is not a date and time such as 2026-11-21T06:00:00", param, ctx)


@click.command(
    epilog=examples(
        "penstock reset my_app:topology --config penstock.toml",
        "penstock reset my_app:topology --config penstock.toml --execute",
        "penstock reset my_app:topology --config penstock.toml --sinks --execute",
        "penstock reset --input-topic flights --by-duration 2h --execute",
    )
)
@click.argument("topology", required=False, metavar="[MODULE:TOPOLOGY]")
@configuration
@as_json
@click.option("--execute", is_flag=True, help="Do it; without this, only print what would be done.")
@click.option("--input-topic", "inputs", multiple=True, metavar="TOPIC", help="Instead of a topology; may be repeated.")
@click.option("--to-earliest", is_flag=True, help="Read from the beginning (default).")
@click.option("--to-latest", is_flag=True, help="Read only new records.")
@click.option("--to-datetime", type=Moment(), metavar="TIME", help="Read from this time.")
@click.option("--by-duration", type=Duration(), metavar="TIME", help="Read records of at most this age, e.g. 90m.")
@click.option("--shift-by", type=int, metavar="N", help="Shift offsets by this number; negative: backwards.")
@click.option("--local-only", is_flag=True, help="Delete only the state on this host.")
@click.option("--sinks", "with_sinks", is_flag=True, help="Delete the offsets in sinks outside of Kafka, but no rows.")
@click.option("--wait", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS", help="Wait for members to leave.")
def reset(
    topology: str | None,
    settings: Settings,
    json_output: bool,
    execute: bool,
    inputs: tuple[str, ...],
    to_earliest: bool,
    to_latest: bool,
    to_datetime: int | None,
    by_duration: int | None,
    shift_by: int | None,
    local_only: bool,
    with_sinks: bool,
    wait: float,
) -> None:
    """Reset an application: input offsets, internal topics, the state on this host.

    MODULE:TOPOLOGY defines the input topics. Dry run unless --execute.
    """
    since = time.time_ns() // 1_000_000 - by_duration if by_duration is not None else to_datetime
    given = [to_earliest, to_latest, to_datetime is not None, by_duration is not None, shift_by is not None]
    if sum(given) > 1:
        raise click.UsageError("Give one of --to-earliest, --to-latest, --to-datetime, --by-duration, --shift-by.")
    config = settings.load_located()
    built = [] if topology is None else _built(topology, config)
    sinks = dict(sinks_of(built))
    if with_sinks and not sinks:
        raise click.UsageError("--sinks needs a topology (MODULE:TOPOLOGY) with sinks outside of Kafka.")
    topics = set(inputs) | _sources(built)
    if not topics and not local_only:
        raise click.UsageError(
            "Give the topology (MODULE:TOPOLOGY) or --input-topic, to reset the offsets of its topics."
        )
    with ApplicationReset(config) as resetting:
        _refuse_if_running(settings.load())
        plan: dict[str, Any] = {"executed": execute, "state": str(resetting.state), "tasks": resetting.local_tasks()}
        moves: list[Move] = []
        plan["internal_topics"], plan["kept_topics"] = [], []
        if not local_only:
            if execute:
                resetting.wait_until_empty(wait)
            moves = resetting.moves(topics, Target(to_latest, since, shift_by))
            plan["internal_topics"], plan["kept_topics"] = resetting.internal_topics()
            plan["sinks"] = _stored(sinks, config["application.id"], with_sinks)
        plan["offsets"] = [{**m.partition._asdict(), "committed": m.committed, "offset": m.offset} for m in moves]
        if execute:
            resetting.move(moves)
            resetting.delete_topics(plan["internal_topics"])
            resetting.delete_state()
            for sink in sinks.values() if with_sinks else ():
                sink.forget(config["application.id"])
    if json_output:
        print_json(plan)
    else:
        _show(plan)


def _built(topology: str, config: StreamsConfig) -> list[ProcessorTopology]:
    return TopologySource.of(topology).load_for_command(config).internal_builder.build_subtopologies(config)


def _stored(sinks: Mapping[str, Sink], application_id: str, deleted: bool) -> list[dict[str, object]]:
    """Return the offsets that sinks have stored, with what happens to them."""
    return [
        {"sink": name, "place": str(sink), **stored.partition._asdict(), "offset": stored.offset, "deleted": deleted}
        for name, sink in sinks.items()
        for stored in sink.stored(application_id)
        if stored.sink == name
    ]


def _sources(built: Iterable[ProcessorTopology]) -> set[str]:
    """Return the user topics that the tasks read."""
    built = list(built)
    internal = {topic for one in built for topic in one.repartition_topics}
    return {topic for one in built for topic in one.source_topics} - internal


def _refuse_if_running(config: StreamsConfig) -> None:
    try:
        with find(config) as running:
            raise StreamsError(f"The application runs on this host, in {running.directory}: stop it first.")
    except NotRunningError:
        return


def _show(plan: dict[str, Any]) -> None:
    executed = plan["executed"]
    click.echo("Done:\n" if executed else "Dry run: nothing is changed. Add --execute to do this.\n")
    if plan["offsets"]:
        view = table("input topic", "partition", "committed", "new offset", left=("input topic",))
        for row in plan["offsets"]:
            committed = "-" if row["committed"] is None else str(row["committed"])
            view.add_row(row["topic"], str(row["partition"]), committed, str(row["offset"]))
        show(view)
        click.echo()
    verb = "deleted" if executed else "to delete"
    click.echo(f"Internal topics {verb}: {', '.join(plan['internal_topics']) or 'none'}")
    if plan["kept_topics"]:
        click.echo(f"Left alone, they look like another group's: {', '.join(plan['kept_topics'])}")
    for row in plan.get("sinks", ()):
        what = verb if row["deleted"] else "kept, as --sinks is not given"
        where = f"{row['topic']}-{row['partition']} in {row['place']}"
        click.echo(f"Offset {row['offset']} of sink {row['sink']} for {where}: {what}")
    tasks = f"{plan['state']} ({counted(len(plan['tasks']), 'task')})" if plan["tasks"] else "none"
    click.echo(f"State {verb} on this host: {tasks}")
