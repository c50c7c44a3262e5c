"""No bytes from outside the process tree are unpickled: a list of the places that may unpickle, with reasons."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.test_structure import ROOMS, ROOT, python_files

#: Functions that turn bytes into objects and can run code while doing so; cloudpickle's loads is pickle's.
MODULES = {"pickle", "cloudpickle", "marshal", "shelve", "dill"}
CALLS = {"load", "loads", "Unpickler"}
#: file: the source of its bytes.
ALLOWED = {
    "penstock/testing/sink_contract.py": "a sink that the test itself has pickled",
    "pipeline/tasks/spark_state.py": "the rows that Spark's Java gives its own Python processes, as PySpark reads them",
    "supervisor/channels/channel.py": "the pipe between the supervisor and its own processes",
    "supervisor/source/pickling.py": "the specification and the topology that the supervisor gives its own processes",
}


def unpicklings(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    named = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in MODULES
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            called = named.get(called, called)
            module, _, function = called.rpartition(".")
            if module in MODULES and function in CALLS:
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {called}"


def test_only_bytes_from_our_own_processes_are_unpickled() -> None:
    found = [place for path in python_files(*ROOMS) for place in unpicklings(path)]
    assert {place.split(":")[0] for place in found} == set(ALLOWED), "\n".join(found)


def test_no_multiprocessing_connection_accepts_other_processes() -> None:
    """multiprocessing's Listener and Client unpickle the bytes that a peer sends."""
    for path in python_files(*ROOMS):
        text = path.read_text()
        assert "multiprocessing.managers" not in text, path
        assert "connection import Listener" not in text, path
        assert "connection import Client" not in text, path
