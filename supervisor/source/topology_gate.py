"""Admits a topology to an application's state only if it fits: enforces ``penstock plan`` at each start."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

from penstock.statestore.directory.own_files import read_own, write_atomically
from penstock.statestore.directory.state_directory import (
    CUSTOM_DIRECTORY,
    GLOBAL_DIRECTORY,
    LOCKS_DIRECTORY,
    STORES_DIRECTORY,
    FileLock,
)
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.context.exception_handlers import SINK_PREFIX
from penstock.topology.errors import LockError, ProcessorStateError
from penstock.topology.graph.topology import Topology
from penstock.topology.graph.topology_facts import Facts, facts_of
from penstock.topology.graph.topology_plan import Plan, Verdict, compare
from penstock.workers.tasks.task_sinks import sinks_of

from .state_places import HANDED_OVER_FILE_NAME, application_directory
from .topology_source import TopologyLoadError

log = logging.getLogger(__name__)

#: The file with the description of the topology that created the state.
FACTS_FILE_NAME = "topology.json"
#: The engine in that file while a `penstock backfill` is unfinished.
BACKFILL = "backfill"


def read_facts(file: Path, read: Callable[[Path], str] = read_own) -> Facts | None:
    """Return a description, None if there is none. Raises ProcessorStateError if it is damaged.

    read: returns the text of a file; by default only of this user's.
    """
    try:
        facts: Facts = json.loads(read(file))
        if not isinstance(facts, dict):
            raise ValueError("not an object")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ProcessorStateError(
            f"The description of the topology {file} cannot be read: {error}. Delete it; the next start recreates it, "
            "without comparing"
        ) from error
    return facts


def plain_facts(topology: Topology, config: StreamsConfig) -> Facts:
    """Return a topology's description as read back from its file."""
    facts: Facts = json.loads(json.dumps(facts_of(topology, config)))
    return facts


def admit(topology: Topology, config: StreamsConfig) -> None:
    """Compare a topology with the one that created the state, delete the stores to rebuild, and save the description.

    Called by each process of a stream thread before it joins the group. Raises TopologyLoadError if the plan is to
    refuse and ``penstock.topology.changes`` is not ``accept``, if other processes still run the earlier topology, if
    the application was handed over to Spark, or if penstock.sink.prefix is set and there are sinks outside of Kafka.
    """
    _refuse_prefixed_sinks(topology, config)
    directory = application_directory(config)
    _refuse_if_handed_over(directory / HANDED_OVER_FILE_NAME)
    file, locks = directory / FACTS_FILE_NAME, directory / LOCKS_DIRECTORY
    locks.mkdir(parents=True, exist_ok=True)
    facts = plain_facts(topology, config)
    with FileLock(locks / "topology", f"{file} is being written", wait=True):
        earlier = read_facts(file)
        if earlier == facts:
            return
        if earlier is not None:
            _carry_out(compare(earlier, facts), directory, config["penstock.topology.changes"] == "accept")
        write_atomically(file, json.dumps(facts, indent=1) + "\n")


def _refuse_prefixed_sinks(topology: Topology, config: StreamsConfig) -> None:
    """Refuse sinks outside of Kafka if topics get a prefix: a branch would write the rows of its original."""
    if not config[SINK_PREFIX]:
        return
    outside = [name for name, _ in sinks_of(topology.internal_builder.build_subtopologies(config))]
    if outside:
        raise TopologyLoadError(
            f"{SINK_PREFIX} is set, but {', '.join(outside)} writes outside of Kafka, where a prefix has no effect. "
            "Run this application without to_sink(), or without the prefix"
        )


def _refuse_if_handed_over(file: Path) -> None:
    if not file.exists():
        return
    if read_engine(file) == BACKFILL:
        raise TopologyLoadError(
            f"A backfill of the application has not ended, see {file}: run `penstock backfill` again; it continues"
        )
    raise TopologyLoadError(
        f"The application was handed over to Spark, see {file}: offsets and changelogs are outdated. Run it with "
        "--engine spark, or bring it back with `penstock handover --to local`"
    )


def read_engine(file: Path) -> str:
    """Return the engine in a handover's file; a damaged file counts as Spark's."""
    try:
        return str(json.loads(read_own(file))["engine"])
    except (ValueError, KeyError, TypeError):
        return ""


def _carry_out(plan: Plan, directory: Path, accept: bool) -> None:
    for finding in plan.findings:
        level = logging.INFO if finding.verdict is Verdict.SAFE else logging.WARNING
        log.log(level, "The topology has changed (%s): %s: %s", finding.verdict.name, finding.subject, finding.text)
    if plan.verdict is Verdict.REFUSE and not accept:
        refused = [finding for finding in plan.findings if finding.verdict is Verdict.REFUSE]
        reasons = "; ".join(f"{finding.subject}: {finding.text}" for finding in refused)
        raise TopologyLoadError(
            f"The topology does not fit the state in {directory}: {reasons}. `penstock plan` shows all differences; "
            "`penstock run --accept-changes` runs it anyway"
        )
    if plan.rebuild:
        delete_stores(directory, plan.rebuild)


def delete_stores(directory: Path, stores: Iterable[str]) -> None:
    """Delete the files of stores in all tasks, to restore them.

    Raises TopologyLoadError if a process holds one of the tasks, ProcessorStateError if something cannot be deleted.
    """
    folders = (STORES_DIRECTORY, CUSTOM_DIRECTORY)
    found = [path for store in stores for folder in folders for path in directory.glob(f"*/{folder}/{store}")]
    tasks = {path.parent.parent.name for path in found} - {GLOBAL_DIRECTORY}
    with ExitStack() as held:
        try:
            for task in sorted(tasks):
                held.enter_context(FileLock(directory / LOCKS_DIRECTORY / task, f"Task {task} is in use"))
            for path in found:
                log.warning("Deleting %s: it does not fit the topology and is restored from its changelog", path)
                shutil.rmtree(path)
        except LockError as error:
            raise TopologyLoadError(
                f"The topology has changed while the application runs: {error}. Restart the whole application"
            ) from error
        except OSError as error:
            raise ProcessorStateError(f"A store cannot be deleted: {error}. Delete it by hand") from error
