"""Rows of stores on the disks of stopped hosts: they equal a replay of the changelog, wherever a task got them from."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.chaos import program
from tests.chaos.checker import read_all
from tests.chaos.checkers.report import Report
from tests.chaos.hosts import ROOT, Host

Rows = dict[str, Any]
DAMAGED = re.compile(r"The store (?P<task>\S+)/stores/\S+ is damaged: ")


def rows_on_disk(hosts: Iterable[Host], topology: str, stores: Iterable[str], bootstrap_servers: str) -> Report:
    """Compare each task's newest state with the committed records of its changelog.

    topology: defines the stores. An older state, of a task that has moved to the other host, is not judged. It may be
    damaged: a host finds that only when it gets the task back.
    """
    hosts, compared, faults = list(hosts), 0, []
    for store in stores:
        replayed = _replayed(bootstrap_servers, f"{program.APPLICATION_ID}-{store}-changelog")
        for partition, found in _newest(hosts, topology, store).items():
            wanted = replayed.get(partition, {})
            compared += len(found)
            faults += [f"rows on disk: {store}-{partition}: {text}" for text in differences(found, wanted)]
    return Report.of("rows on disk", compared, "rows", faults)


def differences(found: Rows, wanted: Rows) -> Iterator[str]:
    """Yield what is different, by key."""
    for key in sorted(found.keys() | wanted.keys()):
        if key not in wanted:
            yield f"{key} was deleted, and is there"
        elif key not in found:
            yield f"{key} is missing"
        elif found[key] != wanted[key]:
            yield f"{key} is {found[key]}, in the changelog {wanted[key]}"


def _replayed(bootstrap_servers: str, changelog: str) -> Mapping[int, Rows]:
    """Return the last value of each key by partition, without deleted keys."""
    tables: dict[int, Rows] = {}
    for record in read_all(bootstrap_servers, [changelog]):
        tables.setdefault(record.partition, {})[record.name] = record.content
    return {number: {key: value for key, value in rows.items() if value is not None} for number, rows in tables.items()}


def _newest(hosts: Iterable[Host], topology: str, store: str) -> Mapping[int, Rows]:
    """Return the rows of the state that has got furthest, by partition."""
    furthest: dict[int, int] = {}
    rows: dict[int, Rows] = {}
    for host in hosts:
        listed = json.loads(_state(host, "list", "--topology", topology, "--json"))
        offsets = {_partition(row): int(row["changelog_offset"] or 0) for row in listed if row["store"] == store}
        ahead = {number for number, offset in offsets.items() if offset > furthest.get(number, -1)}
        if not ahead:
            continue
        furthest |= {number: offsets[number] for number in ahead}
        rows |= {number: {} for number in ahead}
        for line in _state(host, "export", store, "--topology", topology).splitlines():
            row = json.loads(line)
            if _partition(row) in ahead:
                rows[_partition(row)][row["key"]] = row["value"]
    return rows


def _partition(row: Mapping[str, str]) -> int:
    return int(row["task_id"].partition("_")[2])


def _state(host: Host, *arguments: str) -> str:
    """Return the output of `penstock state` on a stopped host; one without state has none."""
    if not host.task_directories():
        return "[]" if arguments[0] == "list" else ""
    command = [sys.executable, "-m", "penstock.cli", "state", *arguments, "--config", "penstock.toml"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    while True:
        done = subprocess.run(command, cwd=host.directory, env=environment, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return done.stdout
        damaged = damaged_task(done.stderr)
        if damaged is None:
            raise RuntimeError(f"{' '.join(command)} in {host.directory}: {done.stderr}")
        damaged.rename(host.directory / f"damaged-{damaged.name}")


def damaged_task(error: str) -> Path | None:
    """Return the directory of the task with the damaged store that an error of `penstock state` names."""
    found = DAMAGED.search(error)
    return None if found is None else Path(found["task"])
