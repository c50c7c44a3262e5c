"""The process in which DuckDB runs one query: a script that imports nothing of Penstock, so that it starts fast.

The query may come from anyone who may read the stores, so this process has nothing to take: no environment, no
descriptor but its connection, and from the first byte of the query on it cannot open any. DuckDB's settings allow no
access to files, network and extensions, and are locked; only SELECT, tables that are stores, and harmless table
functions pass. The parent ends it after the query's time. sql_queries.py describes the messages.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
import threading
import zoneinfo
from base64 import b64decode
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeVar


class WithoutPandas:
    """Hides pandas: pyarrow would import it, and take twice as long."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        """Find nothing. Raises ModuleNotFoundError for pandas."""
        if name == "pandas":
            raise ModuleNotFoundError(name=name)


sys.meta_path.insert(0, WithoutPandas)

import duckdb  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.compute as pc  # noqa: E402
import pyarrow.dataset as ds  # noqa: E402

#: The settings of the database. Nothing can change them after lock_configuration.
SETTINGS = {
    "enable_external_access": "false",
    "python_enable_replacements": "false",
    "allow_community_extensions": "false",
    "allow_unsigned_extensions": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_persistent_secrets": "false",
    "temp_directory": "",
    "max_temp_directory_size": "0KB",
    "threads": "1",
}
#: Kinds of nodes of a query, and of what it selects from. Others could write, or read something else than stores.
QUERY_NODES = frozenset(("SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"))
SOURCES = frozenset(
    ("BASE_TABLE", "SUBQUERY", "JOIN", "TABLE_FUNCTION", "EXPRESSION_LIST", "EMPTY", "EMPTY_FROM", "PIVOT", "SHOW_REF")
)
TABLE_FUNCTIONS = frozenset(("range", "generate_series", "unnest", "repeat", "json_each", "json_tree"))
#: The descriptor of the connection: with the standard streams it occupies all that there may be.
CONNECTION = 3
#: Rows of a batch of the result.
RESULT_ROWS = 16_384
#: Memory of the process beside DuckDB's: a batch of rows as bytes, as read and as filtered.
BESIDE_BYTES = 256 << 20
KEY = "key"
WINDOW_START, WINDOW_END = "window_start", "window_end"
#: Arrow's functions of a filter, by the limits that they set.
_LOWER, _UPPER = frozenset(("equal", "greater", "greater_equal")), frozenset(("equal", "less", "less_equal"))
_LAST_CHARACTER = chr(sys.maxunicode)
_SURROGATES = range(0xD800, 0xE000)
#: DuckDB and Arrow may read two stores at a time.
_turn = threading.Lock()
T = TypeVar("T")
#: Loaded now, because later no file can be opened; pyarrow looks it up for times.
UTC = zoneinfo.ZoneInfo("UTC")


class RefusedError(Exception):
    """A query that is not run."""


class GoneError(Exception):
    """The parent has ended the query, and knows why."""


# -- the query


def parsed(database: duckdb.DuckDBPyConnection, query: str) -> dict[str, Any]:
    """Return the syntax tree of a query; raises RefusedError unless it is one SELECT."""
    ((text,),) = database.execute("select json_serialize_sql(?::varchar)", [query]).fetchall()
    tree: dict[str, Any] = json.loads(text)
    if tree["error"]:
        message = str(tree.get("error_message"))
        if "Only SELECT" in message:
            message = "Only SELECT can be run: stores are read, not written."
        raise RefusedError(message)
    if len(tree["statements"]) != 1:
        raise RefusedError(f"Expected one SELECT, got {len(tree['statements'])} statements.")
    return tree


def nodes(part: object) -> Iterator[dict[str, Any]]:
    """Yield all nodes of a syntax tree."""
    waiting = [part]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield one
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one


def check(tree: dict[str, Any]) -> None:
    """Raise RefusedError for a query that does more than to select from tables and harmless functions."""
    for node in nodes(tree):
        for query in (node.get("node"), node.get("query_node")):
            if isinstance(query, dict) and query.get("type", "SELECT_NODE") not in QUERY_NODES:
                raise RefusedError(f"Only SELECT can be run, not {query['type']}: stores are read, not written.")
        source = node.get("from_table")
        if isinstance(source, dict) and source.get("type", "EMPTY") not in SOURCES:
            raise RefusedError(f"A query cannot select from {source['type']}.")
        function = node.get("function")
        if node.get("type") == "TABLE_FUNCTION" and isinstance(function, dict):
            name = function["function_name"].lower()
            if name not in TABLE_FUNCTIONS or function["schema"] or function["catalog"]:
                raise RefusedError(
                    f"The table function {name} cannot be called: a query reads stores, and calls only "
                    f"{', '.join(sorted(TABLE_FUNCTIONS))}."
                )


def tables(tree: dict[str, Any]) -> dict[str, int]:
    """Return how often a query names each table that is not its own (WITH)."""
    own = {pair["key"].lower() for node in nodes(tree) for pair in node.get("cte_map", {}).get("map", ())}
    counts: dict[str, int] = {}
    for node in nodes(tree):
        if node.get("type") != "BASE_TABLE":
            continue
        name = node["table_name"]
        if node["schema_name"] not in ("", "main") or node["catalog_name"]:
            raise RefusedError(f"There is no table {node['schema_name']}.{name}: the tables are the stores.")
        if name.lower() not in own:
            counts[name] = counts.get(name, 0) + 1
    return counts


def with_prefixes(tree: dict[str, Any]) -> dict[str, Any]:
    """Return a query whose conditions on the first letters of the key (LIKE 'a%', starts_with) limit the range, too.

    DuckDB passes ranges to the stores, but not such functions. Each condition c becomes c AND key >= 'a' AND key < 'b',
    which is true for the same rows.
    """
    for node in list(nodes(tree)):
        if node.get("class") == "FUNCTION" and "arguments" in node:
            prefix = _prefix(node)
            if prefix:
                condition, column, end = dict(node), node["arguments"][0]["expression"], after(prefix)
                range_ = [_compared(column, "GREATERTHANOREQUALTO", prefix)]
                range_ += [] if end is None else [_compared(column, "LESSTHAN", end)]
                node.clear()
                node |= _all_of(condition, *range_)
    return tree


def after(prefix: str) -> str | None:
    """Return the first text after all texts with a prefix, in the order of their UTF-8; None if there is none."""
    kept = prefix.rstrip(_LAST_CHARACTER)
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(following if following not in _SURROGATES else _SURROGATES.stop)


def _prefix(function: dict[str, Any]) -> str:
    """Return the first letters of keys for which a function is true; "" if it has no such."""
    name, arguments = function["function_name"].lower(), [one["expression"] for one in function["arguments"]]
    if name not in ("~~", "starts_with", "prefix", "^@") or len(arguments) != 2:
        return ""
    column, constant = arguments
    literal = constant.get("literal") or {}
    if (
        column.get("type") != "COLUMN_REF"
        or column["column_names"][-1].lower() != KEY
        or literal.get("kind") != "STRING"
    ):
        return ""
    text: str = literal["text"]
    if name == "~~":
        text = text[: min((at for letter in "%_\\" if (at := text.find(letter)) >= 0), default=len(text))]
    return text


def _compared(column: dict[str, object], how: str, text: str) -> dict[str, Any]:
    constant = {"class": "CONSTANT", "type": "VALUE_CONSTANT", "alias": "", "literal": {"kind": "STRING", "text": text}}
    return {"class": "COMPARISON", "type": f"COMPARE_{how}", "alias": "", "left": column, "right": constant}


def _all_of(*conditions: dict[str, object]) -> dict[str, Any]:
    return {"class": "CONJUNCTION", "type": "CONJUNCTION_AND", "alias": "", "children": list(conditions)}


# -- filters


class _Schema(ctypes.Structure):
    """The first fields of ArrowSchema, Arrow's C data interface."""

    _fields_ = (("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_void_p))


class FilterNode(NamedTuple):
    """A part of a filter. kind: a "call" of a function, a "field_ref", a "literal" …; value: its name, or the value."""

    kind: str
    value: Any
    arguments: list[FilterNode]


def filter_tree(expression: pc.Expression) -> FilterNode:
    """Return an expression as a tree.

    As Arrow serializes it: a batch with the literals, and the tree as metadata of its schema, whose keys repeat. They
    are read by the C interface, because pyarrow makes a dict of them. A call's options follow its arguments.
    """
    batch = pa.ipc.open_file(expression.__reduce__()[1][0]).get_batch(0)
    capsule = batch.schema.__arrow_c_schema__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    words = iter(_pairs(_Schema.from_address(pointer(capsule, b"arrow_schema")).metadata))
    return _tree(next(words), words, batch)


def _pairs(address: int) -> list[tuple[str, str]]:
    def number() -> int:
        nonlocal address
        found = ctypes.c_int32.from_address(address).value
        address += 4
        return found

    def text() -> str:
        nonlocal address
        size = number()
        found = ctypes.string_at(address, size).decode()
        address += size
        return found

    return [(text(), text()) for _ in range(number())]


def _tree(word: tuple[str, str], words: Iterator[tuple[str, str]], batch: pa.RecordBatch) -> FilterNode:
    kind, value = word
    if kind in ("literal", "options"):
        return FilterNode(kind, batch.column(int(value))[0].as_py(), [])
    if kind == "nested_field_ref":
        return FilterNode(kind, [_tree(next(words), words, batch) for _ in range(int(value))], [])
    arguments = []
    if kind == "call":
        while (following := next(words))[0] != "end":
            arguments.append(_tree(following, words, batch))
    return FilterNode(kind, value, arguments)


def fields(tree: FilterNode) -> set[str]:
    """Return the columns of a filter."""
    kind, value, arguments = tree
    if kind == "nested_field_ref":
        return fields(value[0])
    return {value} if kind == "field_ref" else {name for one in arguments for name in fields(one)}


Limits = tuple[Any, Any]


def limits(tree: FilterNode, column: str) -> Limits:
    """Return the smallest and the largest value of a column in rows that pass a filter; None for an open side."""
    kind, name, arguments = tree
    if kind != "call":
        return None, None
    if name in ("and", "and_kleene"):
        (low, high), (other_low, other_high) = (limits(one, column) for one in arguments)
        return _inner(low, other_low, max), _inner(high, other_high, min)
    if name in ("or", "or_kleene"):
        (low, high), (other_low, other_high) = (limits(one, column) for one in arguments)
        return _outer(low, other_low, min), _outer(high, other_high, max)
    if name == "if_else" and arguments[2][0] == "literal" and not arguments[2][1]:
        return limits(arguments[1], column)  # with null or false otherwise, rows pass only if this is true
    if not arguments or arguments[0][:2] != ("field_ref", column) or len(arguments) < 2:
        return None, None
    if name == "is_in":
        values = [one for one in arguments[-1][1]["value_set"] if one is not None]
        return (min(values), max(values)) if values else (None, None)
    value = arguments[1][1] if arguments[1][0] == "literal" else None
    return value if name in _LOWER else None, value if name in _UPPER else None


def _inner(one: T | None, other: T | None, choose: Callable[[T, T], T]) -> T | None:
    return one if other is None else other if one is None else choose(one, other)


def _outer(one: T | None, other: T | None, choose: Callable[[T, T], T]) -> T | None:
    return None if one is None or other is None else choose(one, other)


def bounds(tree: FilterNode, schema: pa.Schema, key_order: str, sessions: bool) -> dict[str, Any] | None:
    """Return the bounds of a scan, as parameters of a store's read; None if no row passes.

    key_order: see ColumnsRead. sessions: whether rows are found by the ends of their windows, not by the starts. The
    filter is applied to the rows all the same: bounds may let more of them pass.
    """
    found: dict[str, object] = {}
    low, high = limits(tree, KEY) if key_order else (None, None)
    if low is not None and high is not None and low > high:
        return None
    if key_order == "integer" and (low is not None or high is not None):
        bits = schema.field(KEY).type.bit_width
        if low is not None and low >= 0:
            high = 2 ** (bits - 1) - 1 if high is None else high
        elif high is not None and high < 0:
            low = -(2 ** (bits - 1)) if low is None else low
        else:  # the bytes of numbers below zero come last
            low = high = None
    found["key_from"], found["key_to"] = (None if side is None else str(side) for side in (low, high))
    if WINDOW_START in schema.names:
        first, last = limits(tree, WINDOW_START)
        if sessions:  # a session ends where it starts, or later
            first = _inner(first, limits(tree, WINDOW_END)[0], max)
        found["time_from"], found["time_to"] = _ms(first), _ms(last)
    return found


def _ms(time: Any) -> int | None:
    return None if time is None else max(int(time.timestamp() * 1000), 0)


# -- tables


class Store(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """A store as a table of DuckDB, which calls scanner() with the columns and the filter of a query.

    whole: whether the query names the store more than once; its rows are then read once and kept.
    """

    def __init__(self, name: str, connection: Connection, whole: bool) -> None:
        described = _asked(connection, {"table": name})
        self._name = name
        self._connection = connection
        self._schema = pa.ipc.read_schema(pa.py_buffer(b64decode(described["schema"])))
        self._key_order: str = described["key_order"]
        self._sessions: bool = described["sessions"]
        self._whole = whole
        self._kept: list[pa.RecordBatch] | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._schema

    def scanner(self, columns: list[str] | None = None, filter: pc.Expression | None = None, **_: Any) -> ds.Scanner:
        """Return the rows of a query."""
        names = self._schema.names if columns is None else columns
        if self._whole:
            if self._kept is None:
                self._kept = list(self._read(self._schema, {}))
            return _scanner(iter(self._kept), self._schema, names, filter)
        tree = None if filter is None else filter_tree(filter)
        wanted = {*names, *(() if tree is None else fields(tree))}
        schema = pa.schema([field for field in self._schema if field.name in wanted])
        limited = {} if tree is None else bounds(tree, self._schema, self._key_order, self._sessions)
        rows = iter(()) if limited is None else self._read(schema, limited)
        return _scanner(rows, schema, names, filter)

    def _read(self, schema: pa.Schema, limited: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        scan = _asked(self._connection, {"scan": self._name, "columns": schema.names, **limited})["number"]
        while batch := _batch(self._connection, scan):
            yield pa.ipc.read_record_batch(pa.py_buffer(batch), schema)


def _batch(connection: Connection, scan: int) -> bytes:
    with _turn:
        _send(connection, {"next": scan})
        return _received(connection)


def _scanner(rows: Iterator[pa.RecordBatch], schema: pa.Schema, names: list[str], filter: object) -> ds.Scanner:
    return ds.Scanner.from_batches(rows, schema=schema, columns=names, filter=filter, use_threads=False)


# -- the process


def _send(connection: Connection, message: dict[str, Any]) -> None:
    connection.send_bytes(json.dumps(message).encode())


def _received(connection: Connection) -> bytes:
    try:
        return connection.recv_bytes()
    except EOFError:
        raise GoneError from None


def _asked(connection: Connection, question: dict[str, object]) -> dict[str, Any]:
    with _turn:
        _send(connection, question)
        found: dict[str, object] = json.loads(_received(connection))
    return found


def close_doors(memory_bytes: int) -> None:
    """Make the process unable to open a file or a connection, or to take more memory than it may."""
    if sys.platform == "linux":
        with open("/proc/self/statm") as statm:
            used = int(statm.read().split()[5]) * resource.getpagesize()
        _limit(resource.RLIMIT_DATA, used + memory_bytes + BESIDE_BYTES)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_CORE, 0)
    os.closerange(CONNECTION + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    _limit(resource.RLIMIT_NOFILE, CONNECTION + 1)


def _limit(what: int, number: int) -> None:
    resource.setrlimit(what, (number, number))


def opened(memory_bytes: int) -> duckdb.DuckDBPyConnection:
    """Return a database in memory with locked settings."""
    database = duckdb.connect(":memory:", config={**SETTINGS, "memory_limit": f"{memory_bytes // 1024}KiB"})
    database.execute("set timezone = 'UTC'")
    database.execute("set lock_configuration = true")
    return database


def run(database: duckdb.DuckDBPyConnection, query: str, connection: Connection) -> None:
    """Run a query, and send its result."""
    tree = parsed(database, query)
    check(tree)
    for name, count in tables(tree).items():
        database.register(name, Store(name, connection, count > 1))
    tree_text = json.dumps(with_prefixes(tree))
    ((text,),) = database.execute("select json_deserialize_sql(?::json)", [tree_text]).fetchall()
    reader: Any = database.execute(text).to_arrow_reader(RESULT_ROWS)
    _send(connection, {"result": reader.schema.names})
    connection.send_bytes(reader.schema.serialize().to_pybytes())
    for batch in reader:
        if batch.num_rows:
            connection.send_bytes(batch.serialize().to_pybytes())
    connection.send_bytes(b"")


def main(descriptor: int) -> None:
    """Run the query that the parent sends."""
    os.dup2(descriptor, CONNECTION)
    connection = Connection(CONNECTION)
    try:
        asked = json.loads(_received(connection))
    except GoneError:  # no query has come
        return
    database = opened(asked["memory_bytes"])
    close_doors(asked["memory_bytes"])
    try:
        run(database, asked["query"], connection)
    except (GoneError, OSError):
        return
    except (MemoryError, pa.ArrowMemoryError, duckdb.OutOfMemoryException):
        _send(connection, {"error": "memory"})
    except (RefusedError, duckdb.Error, pa.ArrowException, ValueError, RecursionError) as error:
        text = str(error)
        _send(
            connection, {"error": "memory" if "bad_alloc" in text or "Out of Memory" in text else "query", "text": text}
        )


if __name__ == "__main__":
    main(int(sys.argv[1]))
