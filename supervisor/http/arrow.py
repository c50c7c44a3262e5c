"""Responses with batches of Arrow: the rows of stores, and results of SQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

import orjson
from anyio import CancelScope, to_thread
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from penstock.topology.query.isolation_level import IsolationLevel
from penstock.topology.query.position import Position

from ..logs.log_floods import bounded_logger
from ..queries.store_routing import QueryError, position_json
from ..queries.store_scans import Scan, Table
from ..sql.sql_queries import END_OF_STREAM, SqlQueries, SqlQuery
from ..sql.sql_result import METADATA
from .forwarding import ARROW

if TYPE_CHECKING:
    import pyarrow as pa

logger = bounded_logger(__name__)


def no_columns() -> Table:
    """Return the table of a store without a running task here."""
    import pyarrow as pa

    return Table(pa.schema([]), "", False)


def read_schema(data: bytes) -> pa.Schema:
    """Return a schema from its bytes; raises QueryError if they are no schema."""
    import pyarrow as pa

    try:
        return pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, OSError) as error:
        raise QueryError(400, "BAD_REQUEST", f"schema= is not a schema of Arrow: {error}") from error


def chosen(schema: pa.Schema, names: tuple[str, ...] | None, store: str) -> pa.Schema:
    """Return some columns of a store; raises QueryError for a name that it does not have."""
    import pyarrow as pa

    for name in names or ():
        if name not in schema.names:
            text = f"The store {store} has no column {name!r}; it has {', '.join(schema.names)}."
            raise QueryError(400, "BAD_REQUEST", text)
    return schema if names is None else pa.schema([schema.field(name) for name in names])


def columns_response(table: Table) -> Response:
    """Return the columns of a store, without rows."""
    schema = _described(table.schema, {"key_order": table.key_order, "sessions": table.sessions})
    return Response(schema.serialize().to_pybytes() + END_OF_STREAM, media_type=ARROW)


def rows_response(schema: pa.Schema, scan: Scan) -> Response:
    """Return the rows of a scan, as they are read."""
    read = {"tasks": scan.tasks, "complete": scan.complete, "position": position_json(scan.position)}
    return StreamingResponse(_rows(_described(schema, read), scan), media_type=ARROW)


def _described(schema: pa.Schema, read: Mapping[str, object]) -> pa.Schema:
    return schema.with_metadata({METADATA: orjson.dumps(read)})


async def _rows(schema: pa.Schema, scan: Scan) -> AsyncIterator[bytes]:
    """Yield a stream of Arrow. If not all rows can be read, the response breaks off."""
    try:
        yield schema.serialize().to_pybytes()
        batches = iter(scan)
        while batch := await to_thread.run_sync(next, batches, b""):
            yield batch
        yield END_OF_STREAM
    except QueryError as error:
        logger.warning("A response with rows breaks off: %s", error)
        raise
    finally:
        with CancelScope(shield=True):
            await to_thread.run_sync(scan.close)


def sql_response(queries: SqlQueries, body: bytes, request: Request) -> Response:
    """Return the result of a query: Arrow, or JSON if the client does not ask for Arrow."""
    result = queries.run(sql_query(body))
    if ARROW in request.headers.get("accept", ""):
        return Response(result.stream, media_type=ARROW)
    return Response(orjson.dumps(result.to_json()), media_type="application/json")


def sql_query(body: bytes) -> SqlQuery:
    """Return the query of a request: JSON with ``query``, and perhaps the arguments of KafkaStreams.sql.

    Raises QueryError.
    """
    try:
        given = orjson.loads(body)
        unknown = given.keys() - {"query", "isolation", "at_least", "schemas", "timeout_ms"}
        if unknown:
            raise ValueError(f"there is no field {', '.join(sorted(unknown))}")
        level, timeout, at_least = given.get("isolation"), given.get("timeout_ms"), given.get("at_least", {})
        bound = {topic: {int(number): int(offset) for number, offset in of.items()} for topic, of in at_least.items()}
        return SqlQuery(
            _text(given["query"]),
            None if level is None else IsolationLevel(level.lower()),
            Position.from_map(bound),
            {store: dict(columns) for store, columns in given.get("schemas", {}).items()},
            None if timeout is None else int(timeout) / 1000,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        text = f'Expected JSON such as {{"query": "select count(*) from counts"}}: {type(error).__name__}: {error}.'
        raise QueryError(400, "BAD_REQUEST", text) from error


def _text(query: object) -> str:
    if not isinstance(query, str):
        raise TypeError("query is no text")
    return query
