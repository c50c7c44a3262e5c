"""The layout holds: who imports whom, how long files and functions are, setup.cfg against the folders.

docs/architecture.md has the table of rooms; this is the table in force.
"""

from __future__ import annotations

import ast
import configparser
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("kernel", "topology", "statestore", "clients", "workers", "supervisor", "pipeline", "penstock")
MAY_IMPORT = {
    "kernel": set(),
    "topology": {"kernel"},
    "statestore": {"kernel", "topology"},
    "clients": {"kernel", "topology"},
    "workers": {"kernel", "topology", "statestore", "clients"},
    "supervisor": {"kernel", "topology", "statestore", "clients", "workers"},
    "pipeline": {"topology", "statestore"},
    "penstock": set(ROOMS),
}
CLIENTS_SEE = ("penstock.topology.errors", "penstock.topology.records")
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
FUNCTION_LINES_P90 = 35
FUNCTION_LINES_MEDIAN = 10
#: Clients and process tools that the pure rooms must not see.
IMPURE = {"confluent_kafka", "kafka", "rocksdict", "multiprocessing", "subprocess", "socket", "psutil"}


def python_files(*folders: str) -> list[Path]:
    return sorted(p for folder in folders for p in (ROOT / folder).rglob("*.py") if not linked(p))


def linked(path: Path) -> bool:
    return any((ROOT / part).is_symlink() for part in path.relative_to(ROOT).parents)


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the full module name of each import in a file, with how many dots a relative one has."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", node.level


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_the_table_allows(room: str) -> None:
    for path in python_files(room):
        depth = len(path.relative_to(ROOT / room).parts)
        for module, level in imports(path):
            where = f"{path.relative_to(ROOT)} imports {'.' * level}{module}"
            assert level <= depth, f"{where}: a relative import leaves the room; write penstock.<room>"
            parts = module.split(".")
            assert parts[0] not in ROOMS[:-1] or level, f"{where}: write penstock.{module}"
            if level == 0 and parts[0] == "penstock" and room != "penstock":
                target = parts[1] if len(parts) > 1 else "penstock"
                assert target in MAY_IMPORT[room], f"{where}: {room} may import only {sorted(MAY_IMPORT[room])}"


def test_the_topology_is_pure() -> None:
    for path in python_files("topology"):
        for module, level in imports(path):
            assert level or module.split(".")[0] not in IMPURE or "serdes" in path.name, (
                f"{path.relative_to(ROOT)} imports {module}: no client, disk or process in topology/"
            )


def test_the_client_knows_kafka_and_nothing_of_streams() -> None:
    """Topologies, their configuration and their assignments are handed to it as values of its own."""
    for path in python_files("clients"):
        for module, _ in imports(path):
            assert not module.startswith("penstock.topology") or module in CLIENTS_SEE, (
                f"{path.relative_to(ROOT)} imports {module}: of the topology clients/ may see only {CLIENTS_SEE}"
            )


def test_only_the_adapter_knows_librdkafka() -> None:
    """What runs in a worker speaks to brokers by itself; the command line and the pipelines may ask confluent-kafka."""
    for path in python_files("kernel", "statestore", "clients", "workers", "supervisor"):
        for module, _ in imports(path):
            assert module.split(".")[0] != "confluent_kafka" or path.parent == ROOT / "clients" / "librdkafka", (
                f"{path.relative_to(ROOT)} imports {module}: only clients/librdkafka/ does; use what it offers"
            )


def module_graph() -> dict[str, set[str]]:
    """Which module of ours imports which, at import time (imports inside functions and TYPE_CHECKING do not count)."""
    graph: dict[str, set[str]] = {}
    for room in ROOMS:
        for path in python_files(room):
            name = ".".join(("penstock", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
            name = name.replace("penstock.penstock", "penstock")
            package = name if path.name == "__init__.py" else name.rpartition(".")[0]
            graph[name] = {
                target
                for node in ast.parse(path.read_text()).body
                if isinstance(node, ast.ImportFrom)
                for target in targets(node, package)
            }
    return {name: {t for t in found if t in graph} - {name} for name, found in graph.items()}


def targets(node: ast.ImportFrom, package: str) -> Iterator[str]:
    base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
    module = ".".join((*base, *([node.module] if node.module else [])))
    yield module
    yield from (f"{module}.{alias.name}" for alias in node.names)


def test_no_module_imports_itself_in_a_circle() -> None:
    graph = module_graph()
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, "import circle: " + " -> ".join((*path[path.index(name) :], name))
        if name in done:
            return
        for target in sorted(graph[name]):
            if target not in name:  # a package's __init__ may gather its own modules
                visit(target, (*path, name))
        done.add(name)

    for name in sorted(graph):
        visit(name, ())


def function_lengths(path: Path) -> Iterator[tuple[str, int]]:
    """Yield each function's name and its lines without the docstring; a nested one counts alone and in its parent."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            first = node.body[0]
            if ast.get_docstring(node) is not None:
                lines -= (first.end_lineno or first.lineno) - first.lineno + 1
            yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", lines


def test_files_and_functions_stay_short() -> None:
    files = python_files(*ROOMS, "examples", "benchmarks", "tests")
    long_files = {str(p.relative_to(ROOT)): n for p in files if (n := len(p.read_text().splitlines())) > FILE_LINES_MAX}
    assert not long_files, f"files over {FILE_LINES_MAX} lines: {long_files}"
    lengths = dict(item for path in files for item in function_lengths(path))
    long_functions = {name: n for name, n in lengths.items() if n > FUNCTION_LINES_MAX}
    assert not long_functions, f"functions over {FUNCTION_LINES_MAX} lines: {long_functions}"
    product = [n for path in python_files(*ROOMS) for _, n in function_lengths(path)]
    assert statistics.median(product) <= FUNCTION_LINES_MEDIAN
    assert statistics.quantiles(product, n=10)[8] <= FUNCTION_LINES_P90


def test_setup_cfg_lists_every_package() -> None:
    """A package that is missing here works from a checkout and is silently absent from the wheel."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    listed = set(setup["options"]["packages"].split())
    on_disk = {
        ".".join(("penstock", *path.parent.relative_to(ROOT).parts)).replace("penstock.penstock", "penstock")
        for room in ROOMS
        for path in python_files(room)
        if path.name == "__init__.py"
    }
    folders = {path.parent for room in ROOMS for path in python_files(room)}
    without_init = [str(folder) for folder in folders if not (folder / "__init__.py").exists()]
    assert listed == on_disk
    assert not without_init, f"folders with modules but no __init__.py: {without_init}"


@pytest.mark.parametrize("room", ROOMS[:-1])
def test_a_room_refuses_its_bare_name(room: str) -> None:
    text = (ROOT / room / "__init__.py").read_text()
    assert f'if __name__ != "penstock.{room}"' in text
    with pytest.raises(ImportError, match=f"import penstock.{room}, not {room}"):
        exec(compile(text, "__init__.py", "exec"), {"__name__": room})


@pytest.mark.parametrize("room", ROOMS[:-1])
def test_the_symlink_of_a_room_is_relative(room: str) -> None:
    link = ROOT / "penstock" / room
    assert link.is_symlink()
    assert str(link.readlink()) == f"../{room}"
