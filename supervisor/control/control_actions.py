"""The commands of the control socket, and those of other hosts, with their arguments checked.

Nothing else of Administration and ThisHost is reachable.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping

from penstock.topology.errors import StreamsError
from penstock.topology.query.isolation_level import IsolationLevel

from ..sql.sql_queries import SqlQueries, SqlQuery
from .control_socket import Action

#: Methods of Administration that a command may name.
COMMANDS = (
    *("status", "lag", "metrics", "stores", "store_get", "store_page"),
    *("add_thread", "remove_thread", "restart_thread", "pause", "resume", "snapshot"),
    *("hold", "end_hold", "limit_input", "stop"),
)
#: Methods of ThisHost that another host may name.
HOST_COMMANDS = ("hold", "end_hold", "limit_input", "stop")
#: Conversions of their arguments.
TYPES: Mapping[str, tuple[type, ...]] = {
    "name": (str,),
    "timeout": (int, float, type(None)),
    "directory": (str,),
    "store": (str,),
    "task_id": (str,),
    "key": (str,),
    "key_from": (str, type(None)),
    "key_to": (str, type(None)),
    "after": (str, type(None)),
    "limit": (int,),
    "seconds": (int, float),
    "hold": (int,),
    "offsets": (dict,),
    "query": (str,),
    "isolation": (str, type(None)),
    "schemas": (dict,),
}


def actions(owner: object, commands: Iterable[str] = COMMANDS) -> dict[str, Action]:
    """Return actions by name: those of the control socket, whose owner is an Administration, or the given methods."""
    return {command: _checked(command, getattr(owner, command)) for command in commands}


def sql_action(queries: SqlQueries) -> Action:
    """Return the action that runs a query in SQL."""

    def sql(
        query: str,
        isolation: str | None = None,
        schemas: Mapping[str, Mapping[str, str]] | None = None,
        timeout: float | None = None,
    ) -> dict[str, object]:
        level = None if isolation is None else IsolationLevel(isolation)
        return queries.result(SqlQuery(query, level, schemas=schemas or {}, timeout=timeout)).to_json()

    return _checked("sql", sql)


def _checked(command: str, method: Callable[..., object]) -> Action:
    signature = inspect.signature(method)

    def action(**arguments: object) -> object:
        try:
            signature.bind(**arguments)
        except TypeError as error:
            raise StreamsError(f"{command}: {error}") from None
        for name, value in arguments.items():
            kinds = TYPES[name]
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                raise StreamsError(f"{command}: {name} cannot be {value!r}")
        return method(**arguments)

    return action
