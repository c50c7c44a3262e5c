"""The layout: which package imports which, and setup.cfg against the folders.

docs/architecture.md shows the tables of rooms and folders; tests/test_docs.py compares it with these.
"""

from __future__ import annotations

import ast
import configparser
import re
import tokenize
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
    "pipeline": {"kernel", "topology", "statestore", "clients", "workers", "supervisor"},
    "penstock": set(ROOMS),
}
CLIENTS_SEE = ("penstock.topology.errors", "penstock.topology.records")
#: The folders and modules of a room, from bottom to top: code may need only those below it.
FOLDERS = {
    "topology": (
        "clocks type_variables",
        "records errors processor_api shadowing",
        "common",
        "query",
        "config context serdes",
        "stores",
        "operators",
        "graph",
        "declare run",
    ),
    "statestore": (
        "directory rows",
        "checkpoints memory_store",
        "stores",
        "buffers cache",
        "metered_stores",
        "view store_factory",
    ),
    "clients": (
        "clock errors log_context protocol served_clock state_machine traffic",
        "retry_log",
        "throttle",
        "connection",
        "cluster network_settings",
        "reading telemetry writing",
        "group librdkafka",
    ),
    "workers": ("control metrics", "group stalls", "tasks", "queries restore", "thread"),
    "supervisor": (
        "application_state channels exit_codes source",
        "logs offline queries",
        "sql",
        "control http service",
        "processes",
        "supervisor",
        "kafka_streams",
    ),
    "pipeline": ("checkpoint java", "session", "tasks", "queries spark_streams", "handover"),
    "penstock": ("dev sinks tracing", "testing", "replay", "cli"),
}
#: Users' files that docstrings name.
OF_USERS = {("topology/shadowing.py", "click.py"), ("topology/shadowing.py", "logging.py")}
#: Kafka clients and process tools that the pure rooms must not import.
IMPURE = {"confluent_kafka", "kafka", "rocksdict", "multiprocessing", "subprocess", "socket", "psutil"}


def python_files(*folders: str) -> list[Path]:
    return sorted(p for folder in folders for p in (ROOT / folder).rglob("*.py") if not linked(p))


def prose(path: Path) -> Iterator[str]:
    """Yield the comments and docstrings of a file."""
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type == tokenize.COMMENT or token.string.startswith('"""'):
                yield token.string


def linked(path: Path) -> bool:
    return any((ROOT / part).is_symlink() for part in path.relative_to(ROOT).parents)


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the full module name of each import in a file, and the number of dots if it is relative."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", node.level


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_rooms_that_the_table_allows(room: str) -> None:
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


def test_the_topology_imports_no_client_disk_or_process() -> None:
    for path in python_files("topology"):
        for module, level in imports(path):
            assert level or module.split(".")[0] not in IMPURE or "serdes" in path.name, (
                f"{path.relative_to(ROOT)} imports {module}: no client, disk or process in topology/"
            )


def test_the_client_knows_kafka_but_not_streams() -> None:
    """Topologies, their configuration and their assignments are passed to it as its own values."""
    for path in python_files("clients"):
        for module, _ in imports(path):
            assert not module.startswith("penstock.topology") or module in CLIENTS_SEE, (
                f"{path.relative_to(ROOT)} imports {module}: of the topology clients/ may see only {CLIENTS_SEE}"
            )


def test_only_the_adapter_knows_librdkafka() -> None:
    """Workers use Penstock's own client; the command line and the pipelines may use confluent-kafka."""
    for path in python_files("kernel", "statestore", "clients", "workers", "supervisor"):
        if path.parent == ROOT / "supervisor" / "offline":  # for commands on a stopped application
            continue
        for module, _ in imports(path):
            assert module.split(".")[0] != "confluent_kafka" or path.parent == ROOT / "clients" / "librdkafka", (
                f"{path.relative_to(ROOT)} imports {module}: only clients/librdkafka/ does; use what it offers"
            )


def module_graph() -> dict[str, set[str]]:
    """Return the import graph of Penstock's modules at import time (not inside functions or TYPE_CHECKING)."""
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


def test_there_is_no_import_cycle() -> None:
    graph = module_graph()
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, "import circle: " + " -> ".join((*path[path.index(name) :], name))
        if name in done:
            return
        for target in sorted(graph[name]):
            if target not in name:  # a package's __init__ may import its own modules
                visit(target, (*path, name))
        done.add(name)

    for name in sorted(graph):
        visit(name, ())


@pytest.mark.parametrize("room", FOLDERS)
def test_a_folder_imports_only_from_folders_below_it(room: str) -> None:
    """Modules that appear only in annotations do not count: a thread's part may name its owner's type."""
    height = {name: i for i, tier in enumerate(FOLDERS[room]) for name in tier.split()}
    modules = [path for path in (ROOT / room).iterdir() if not path.is_symlink()]
    on_disk = {path.stem for path in modules if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert set(height) == on_disk - {"__init__"}, "the table does not have the folders that there are"
    prefix = "penstock" if room == "penstock" else f"penstock.{room}"
    for path in python_files(room):
        folder = path.relative_to(ROOT / room).with_suffix("").parts[0]
        for module in needed_modules(path, package_of(path)):
            other = module.removeprefix(prefix + ".").split(".")[0] if module.startswith(prefix + ".") else ""
            assert folder == other or height.get(folder, 99) >= height.get(other, -1) + (folder in height), (
                f"{path.relative_to(ROOT)} needs {module}: {room}/{other} stands above or beside {room}/{folder}"
            )


def package_of(path: Path) -> str:
    return ".".join(("penstock", *path.parent.relative_to(ROOT).parts)).replace("penstock.penstock", "penstock")


def needed_modules(path: Path, package: str) -> Iterator[str]:
    """Yield the modules that a file needs when it is imported, not only for its annotations."""
    tree = ast.parse(path.read_text())
    used = set(names_at_run_time(tree))
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            names = [alias for alias in node.names if (alias.asname or alias.name) in used]
            if names:
                yield from targets(ast.ImportFrom(node.module, names, node.level), package)


def names_at_run_time(node: ast.AST) -> Iterator[str]:
    for field, value in ast.iter_fields(node):
        if field not in ("annotation", "returns"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.Name):
                    yield child.id
                if isinstance(child, ast.AST):
                    yield from names_at_run_time(child)


def test_the_largest_classes_are_listed() -> None:
    """Prints them (pytest -rP). A class that grows may hide a missing concept."""
    sizes = []
    for path in python_files(*ROOMS):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                methods = [n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
                made_with = next((len(n.args.args + n.args.kwonlyargs) - 1 for n in methods if n.name == "__init__"), 0)
                sizes.append((len(methods), made_with, f"{path.relative_to(ROOT)} {node.name}"))
    sizes.sort(reverse=True)
    for methods_of_it, arguments, where in sizes[:20]:
        print(f"{methods_of_it:3} methods {arguments:3} constructor arguments  {where}")
    assert sizes[0][0] > sizes[20][0], "no class stands out: this reads something else than the product"


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


@pytest.mark.parametrize("room", ROOMS)
def test_comments_and_docstrings_name_files_that_exist(room: str) -> None:
    there = {path.name for folder in (*ROOMS, "tests") for path in (ROOT / folder).glob("**/*.py*")}
    there |= {path.name for path in ROOT.glob("*.py")}
    named = {
        (str(path.relative_to(ROOT)), name)
        for path in (ROOT / room).glob("**/*.py")
        for text in prose(path)
        for name in re.findall(r"(\w+\.pyx?)\b", text)
    }
    assert {(path, name) for path, name in named if name not in there} <= OF_USERS


def test_comments_and_docstrings_name_classes_with_their_modules() -> None:
    """For a name such as ``partition_fetch.FetchBuffer``. Folders before the module may be omitted."""
    modules: dict[str, str] = {}
    for path in python_files(*ROOMS):
        folders = path.relative_to(ROOT).with_suffix("").parts
        for at in range(len(folders)):
            name = ".".join(folders[at:]).removesuffix(".__init__")
            modules[name] = modules.get(name, "") + path.read_text()
    ours = {name.split(".")[0] for name in modules}
    wrong = [
        f"{path.relative_to(ROOT)}: {module}.{name}"
        for path in python_files(*ROOMS, "tests")
        for text in prose(path)
        for module, name in re.findall(r"(?<![\w.])([a-z_]+(?:\.[a-z_]+)*)\.([A-Z]+[a-z]\w+)", text)
        if module.split(".")[0] in ours - {"java"}
        and not re.search(rf"\b{name}\b", modules.get(module.removeprefix("penstock."), ""))
    ]
    assert not wrong


@pytest.mark.parametrize("room", ROOMS[:-1])
def test_importing_a_room_by_its_bare_name_is_refused(room: str) -> None:
    text = (ROOT / room / "__init__.py").read_text()
    assert f'if __name__ != "penstock.{room}"' in text
    with pytest.raises(ImportError, match=f"import penstock.{room}, not {room}"):
        exec(compile(text, "__init__.py", "exec"), {"__name__": room})


@pytest.mark.parametrize("room", ROOMS[:-1])
def test_the_symlink_of_a_room_is_relative(room: str) -> None:
    link = ROOT / "penstock" / room
    assert link.is_symlink()
    assert str(link.readlink()) == f"../{room}"
