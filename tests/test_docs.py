"""The documentation is correct: its examples run, names and signatures match the code, and
no public name is missing.
"""

from __future__ import annotations

import ast
import enum
import importlib
import importlib.util
import inspect
import os
import pydoc
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import penstock
import penstock.testing
from penstock.cli import cli
from penstock.supervisor.source.config_loader import load_config
from penstock.testing import wire
from penstock.topology.config.client_keys import UNPREFIXED
from penstock.topology.config.config_def import DerivedDefault
from penstock.topology.config.config_keys import KEYS
from penstock.topology.declare.options import StreamJoinOptions, TableJoinOptions
from tests.markdown import Page, blocks, prose
from tests.test_structure import FOLDERS, ROOMS

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
ARCHITECTURE = ROOT / "docs" / "architecture.md"
#: Tables whose first column has Java's names.
JAVA = "coming-from-java.md"
#: Names that the tests of the supervisor and of the layout check.
HELD_ELSEWHERE = {"architecture.md", "operations.md"}

PUBLIC = {**{name: getattr(penstock, name) for name in penstock.__all__}}
PUBLIC |= {name: getattr(penstock.testing, name) for name in penstock.testing.__all__}
#: All actions have the same signature, which the proxy calls; their factories document what they do.
PUBLIC |= {kind.__name__: kind for kind in (wire.Event, wire.Plan, wire.Rule, wire.WireError, wire.WireProxy)}


def page_id(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture(scope="module")
def text() -> str:
    """All pages."""
    return "\n".join(path.read_text() for path in PAGES)


#: Pages whose output a test reads that types all of them, see first_steps.py.
TYPED = ("README.md", "spark-story.md")

# -- examples


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_the_examples_of_a_page_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    page = Page(path)
    page.run()
    runs = [block for block in page.blocks if block.language == "python" and not block.needs_broker]
    assert page.checked or not runs or path.name in TYPED, f"{path.name} has examples, but promises nothing"


#: The operators of each family; the snippets of its page must use them.
FAMILIES = {
    "stateless.md": "stream filter filter_not split branch default_branch no_default_branch merge map_values "
    "flat_map_values select_key map flat_map repartition peek foreach print to",
    "tables.md": "table to_table global_table filter filter_not map_values transform_values to_stream "
    "queryable_store_name",
    "aggregations.md": "group_by_key group_by count reduce aggregate cogroup",
    "windows.md": "TimeWindows SlidingWindows SessionWindows UnlimitedWindows windowed_by count reduce aggregate "
    "emit_strategy suppress until_window_closes until_time_limit max_records shut_down_when_full cogroup",
    "deduplication.md": "deduplicate_by_key deduplicate_by_key_value",
    "joins.md": "join left_join outer_join JoinWindows global_table foreign_key key_selector grace",
    "processor-api.md": "process process_values schedule cancel forward commit get_state_store record_metadata "
    "current_stream_time_ms current_system_time_ms add_state_store add_global_store add_source add_processor add_sink "
    "connect_processor_and_state_stores add_read_only_state_store stores",
    "state-stores.md": "Materialized key_value_store_builder timestamped_key_value_store_builder "
    "versioned_key_value_store_builder window_store_builder timestamped_window_store_builder session_store_builder "
    "with_caching_enabled with_logging_disabled range reverse_range prefix_scan all fetch fetch_range "
    "backward_fetch_range find_sessions",
    "serdes.md": "string int64 float64 json uuid time_windowed session_windowed of",
    "testing.md": "create_input_topic create_output_topic pipe_input advance_wall_clock_time get_key_value_store "
    "produced_topic_names MockProcessorContext",
    "naming-and-topology.md": "describe build subtopologies",
}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_operators_of_a_family_have_a_snippet(name: str) -> None:
    used: set[str] = set()
    for block in blocks((ROOT / "docs" / name).read_text()):
        if block.language == "python":
            used |= set(names_in(ast.parse(block.text)))
    unused = set(FAMILIES[name].split()) - used
    assert not unused, f"no snippet of {name} uses them"


def names_in(tree: ast.AST) -> Iterator[str]:
    """Yield the names in code: variables, attributes, keywords, and strings, which may name a method."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name
            case ast.keyword(arg=str(name)) | ast.Constant(value=str(name)):
                yield name


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_configuration_files_of_a_page_are_valid(path: Path, tmp_path: Path) -> None:
    for block in blocks(path.read_text()):
        if block.language == "toml":
            file = tmp_path / "penstock.toml"
            file.write_text(block.text)
            load_config(file)


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_commands_of_a_page_exist(path: Path) -> None:
    for block in blocks(path.read_text()):
        for line in block.text.splitlines():
            words = line.split("#")[0].split()
            if block.language == "sh" and words and words[0] == "penstock":
                assert_command(words[1:], f"{path.name}: {line}")


def assert_command(words: list[str], where: str) -> None:
    """Raise AssertionError unless the words after ``penstock`` are existing commands and options."""
    command: click.Command = cli
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, where
        command, words = found, words[1:]
    options = {option for parameter in command.params for option in parameter.opts} | {"--help", "--version"}
    assert {word for word in words if word.startswith("-")} <= options, where


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_commands_of_a_page_that_need_no_broker_run(path: Path, tmp_path: Path) -> None:
    page = Page(path)
    page.write_files(tmp_path)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    for line in page.commands("penstock describe", "penstock config"):
        words = shlex.split(line.split("#")[0])
        if not any(word.isupper() for word in words):  # the page has MODULE:TOPOLOGY as a placeholder
            command = [sys.executable, "-m", "penstock.cli", *words[1:]]
            done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{path.name}: {line}: {done.stderr}"
            assert done.stdout


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_links_of_a_page_have_targets(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path.read_text())):
        if not target.startswith(("http:", "https:")):
            name, _, anchor = target.partition("#")
            found = path.parent / name if name else path
            assert found.exists(), f"{path.name} links {target}"
            assert not anchor or anchor in anchors(found), f"{path.name} links {target}: there is no such heading"


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_a_page_installs_the_distribution_by_its_name(path: Path) -> None:
    """On PyPI, penstock is another project; ./penstock is a clone of this repository."""
    assert not re.search(r"pip install[^\n]*[ '\"]penstock(?!-streams)|(?<![./])\bpenstock\[", path.read_text())


def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub generates for the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", prose(path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# -- names and signatures


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield name and object of a class's public members that Penstock defines, without the internal ones of the DSL."""
    for base in kind.__mro__:
        if base.__module__.startswith("penstock"):
            for name, member in vars(base).items():
                if not name.startswith("_") and is_documented(member) and (base.__name__, name) not in INTERNAL:
                    yield name, member


def is_documented(member: Any) -> bool:
    return inspect.isfunction(member) or isinstance(member, classmethod | staticmethod | property)


#: Public only for Penstock's own modules: their docstrings say so, or users do not create their class.
INTERNAL = {
    *(("AbstractStream", name) for name in ("copartition_with", "attach", "attach_named")),
    *(("AggregateBuilder", n) for n in ("attached", "build", "kept", "kept_count", "repartitioned")),
    ("AggregateBuilder", "new_repartition_node"),
    *(("KStream", name) for name in ("same_types", "result", "repartition_for_join")),
    ("AsyncStream", "result"),
    *(("KTable", name) for name in ("value_getter_supplier", "enable_sending_old_values")),
    *(("CogroupedKStream", name) for name in ("kept", "functions", "build")),
    ("GlobalKTable", "value_getter_supplier"),
    ("Suppressed", "resolve"),
    ("StoreSupplier", "require"),
    ("Serde", "topic_serializer"),
    ("Serde", "topic_deserializer"),
    ("Serde", "with_default"),
    ("Serde", "with_elements"),
    ("Serde", "in_application"),
    ("Serde", "open_part"),
    ("Serde", "shape"),
}
#: Pages that document the members of the class.
ALIASES = {
    "ContextualProcessor": "Processor",
    "ContextualFixedKeyProcessor": "FixedKeyProcessor",
    "ReadOnlyKeyValueStore": "KeyValueStore",
    "ReadOnlyWindowStore": "WindowStore",
    "ReadOnlySessionStore": "SessionStore",
}


def public_members() -> Iterator[tuple[str, str, Any]]:
    """Yield (class, member, object) for all public classes."""
    for class_name, kind in PUBLIC.items():
        if inspect.isclass(kind) and not issubclass(kind, enum.Enum | BaseException) and class_name not in ALIASES:
            yield from ((class_name, name, member) for name, member in members(kind))


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_public_name_is_documented(name: str, text: str) -> None:
    assert re.search(rf"`[^`\n]*\b{name}\b[^`\n]*`", text), f"no page names `{name}`"


def test_public_methods_are_documented(text: str) -> None:
    missing = [f"{c}.{m}" for c, m, _ in public_members() if not re.search(rf"`[^`\n]*\b{c}\.{m}\b", text)]
    assert not missing, f"no page names {', '.join(dict.fromkeys(missing))}"


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_a_documented_name_exists(path: Path) -> None:
    for span in re.findall(r"`([^`\n]+)`", ours(path)):
        for class_name, member in re.findall(r"\b([A-Z]\w+)\.([a-z_]\w*)\b", span):
            if class_name in PUBLIC:
                kind = PUBLIC[class_name]
                assert hasattr(kind, member) or member in fields(kind), f"{path.name}: `{span}`"


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_a_documented_module_exists(path: Path) -> None:
    for name in re.findall(r"`(penstock(?:\.[A-Za-z_]\w*)+)(?:\(.*?\))?`", ours(path)):
        module, _, attribute = name.rpartition(".")
        if name not in KEYS and not name.endswith((".toml", ".service")):
            exists = importlib.util.find_spec(module) is not None
            found = exists and hasattr(importlib.import_module(module), attribute)
            assert found or (exists and importlib.util.find_spec(name) is not None), f"{path.name}: `{name}`"


def ours(path: Path) -> str:
    """Return the prose of a page, without Java's columns of tables."""
    text = prose(path.read_text())
    return re.sub(r"^\| .*? \|", "|", text, flags=re.MULTILINE) if path.name == JAVA else text


def fields(kind: Any) -> set[str]:
    """Return the attributes of a class's objects: declared in it, or set in its __init__."""
    ours = [base for base in kind.__mro__ if base.__module__.startswith("penstock")]
    declared = {name for base in ours for name in getattr(base, "__annotations__", {})}
    return declared | {name for base in ours for name in re.findall(r"self\.(\w+) =", inspect.getsource(base))}


#: A heading or a row of a table that begins with a call: `Class.method(…)`, `Class(…)` or `function(…)`.
SIGNATURE = re.compile(r"^(?:#+ |\| )`([\w.]+)\((.*?)\)`", re.MULTILINE)


@pytest.mark.parametrize("path", [path for path in PAGES if path.name != JAVA], ids=page_id)
def test_a_documented_signature_matches_the_code(path: Path) -> None:
    for name, arguments in SIGNATURE.findall(prose(path.read_text())):
        target = documented_object(name)
        if target is not None:
            shown = shown_signature(target)
            is_right = shown.startswith(arguments[:-1]) if arguments.endswith("…") else shown == arguments
            assert is_right, f"{path.name}: {name}({shown})"


def documented_object(name: str) -> Any:
    """Return the object with a documented name, None if it is not part of Penstock."""
    first, _, rest = name.partition(".")
    found = PUBLIC.get(first)
    return found if found is None or not rest else inspect.getattr_static(found, rest)


def shown_signature(target: Any) -> str:
    """Return the parameters of a call as pages show them, without self and annotations."""
    function: Callable[..., Any] = getattr(target, "__func__", target)
    parameters = list(inspect.signature(function).parameters.values())
    if parameters and parameters[0].name in ("self", "cls"):
        del parameters[0]
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    return str(inspect.Signature(bare))[1:-1].replace("datetime.timedelta(", "timedelta(")


def test_the_options_of_joins_are_documented() -> None:
    page = (ROOT / "docs" / "joins.md").read_text()
    for options in (StreamJoinOptions, TableJoinOptions):
        for option in options.__annotations__:
            assert re.search(rf"^\| (`\w+`, )?`{option}`", page, re.MULTILINE), option


# -- docstrings


def test_public_classes_and_methods_have_docstrings() -> None:
    missing = [name for name, found in PUBLIC.items() if inspect.isclass(found) and not vars(found).get("__doc__")]
    missing += [f"{c}.{m}" for c, m, member in public_members() if not inspect.getdoc(member)]
    assert not missing


def test_signatures_show_all_options() -> None:
    """help() shows only the name of ``**options: Unpack[…]``."""
    hidden = [
        f"{class_name}.{name}"
        for class_name, name, member in public_members()
        if inspect.isfunction(member) and "Unpack[" in str(inspect.signature(member))
    ]
    assert not hidden
    shown = pydoc.plain(pydoc.render_doc(penstock.KGroupedStream.aggregate))
    assert "*, name: 'str | None' = None, store: 'StoreOption' = None, key_serde: 'SerdeLike | None' = None" in shown


def test_docstrings_document_the_arguments_of_callbacks() -> None:
    """The docstring of the method or class names a function parameter with the arguments of its calls."""
    wrong = []
    for class_name, name, member in public_members():
        function = getattr(member, "__func__", getattr(member, "fget", member))
        said = f"{inspect.getdoc(member)} {inspect.getdoc(PUBLIC[class_name])}"
        for parameter in inspect.signature(function).parameters.values():
            kind = str(parameter.annotation)
            if "Callable" in kind and not re.search(rf"\b{parameter.name}(\(|:| |s\b)", said):
                wrong.append(f"{class_name}.{name}: {parameter.name}")
    assert not wrong


# -- configuration


def shown_default(default: Any) -> str:
    if isinstance(default, DerivedDefault):
        return f"by {default.why}"
    if default in (None, "", []):
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def test_the_table_of_configuration_keys_matches_the_code() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    rows = re.findall(r"^\| `([\w.]+)` \| (.*?) ?\| (.*) \|$", page, re.MULTILINE)
    documented = {name: (default, meaning) for name, default, meaning in rows if name in KEYS}
    expected = {name: (shown_default(key.default), key.documentation.replace("|", "\\|")) for name, key in KEYS.items()}
    assert documented == expected


@pytest.mark.parametrize("path", [path for path in PAGES if path.name not in HELD_ELSEWHERE], ids=page_id)
def test_documented_configuration_keys_exist(path: Path) -> None:
    """Every `some.key` or `some.key=value` in prose that looks like a key of Penstock exists."""
    known = KEYS.keys() | set().union(*UNPREFIXED.values())
    roots = {name.partition(".")[0] for name in KEYS} - {"state", "security", "client", "window"}
    for key in re.findall(r"`([a-z_]+(?:\.[a-z_0-9]+)+)(?:=[^`]*)?`", prose(path.read_text())):
        is_module = key.startswith("penstock.") and importlib.util.find_spec(".".join(key.split(".")[:2])) is not None
        if key.partition(".")[0] in roots and not is_module and not key.endswith((".py", ".toml", ".md")):
            assert key in known or KEYS.keys() & {key.partition(".")[2]}, f"{path.name}: `{key}`"


# -- the architecture


WALKS = (
    "A record's way",
    "A rebalance's way",
    "A commit's way",
    "A task's life",
    "A clean stop",
    "A crash",
)


def section(page: Path, heading: str) -> str:
    """Return the text below a heading of a page, up to the next one of the same level."""
    level = "#" * len(re.findall(rf"^(#+) {re.escape(heading)}$", page.read_text(), re.MULTILINE)[0])
    return page.read_text().split(f"\n{level} {heading}\n")[1].split(f"\n{level} ")[0]


@pytest.mark.parametrize("heading", WALKS)
def test_a_walk_through_the_code_names_what_its_files_contain(heading: str) -> None:
    """Each step is one file, each file appears once, and every name in backticks is in the file of its step."""
    steps = re.findall(r"^(\d+)\. `([\w/]+\.pyx?)`: (.*)$", section(ARCHITECTURE, heading), re.MULTILINE)
    assert [int(number) for number, _, _ in steps] == list(range(1, len(steps) + 1))
    assert len(steps) > 10
    files = [file for _, file, _ in steps]
    assert len(files) == len(set(files))
    for number, file, said in steps:
        text = (ROOT / file).read_text()
        for name in re.findall(r"`([^`]+)`", said):
            missing = [part for part in name.split(".") if not re.search(rf"\b{part}\b", text)]
            assert not missing, f"{heading}, step {number}: {file} has no {name}"


def test_the_architecture_has_the_rooms_and_their_folders() -> None:
    """In the order of tests/test_structure.py, each folder with the first paragraph of its docstring."""
    rooms = re.findall(r"^\| `(\w+)/` \|", section(ARCHITECTURE, "Rooms"), re.MULTILINE)
    assert rooms == list(reversed(ROOMS))
    for room, tiers in FOLDERS.items():
        rows = re.findall(r"^\| `([\w.]+)` \| (.*) \|$", section(ARCHITECTURE, room), re.MULTILINE)
        names = [name for tier in reversed(tiers) for name in tier.split()]
        assert [name.removesuffix(".py") for name, _ in rows] == names
        for name, said in rows:
            path = ROOT / room / (name if name.endswith(".py") else f"{name}/__init__.py")
            docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
            assert said == " ".join(docstring.split("\n\n")[0].replace("``", "`").split()), path
