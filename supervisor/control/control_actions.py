"""The commands of the control socket, with their arguments checked: nothing else of Administration is reachable."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from penstock.topology.errors import StreamsError

from .administration import Administration
from .control_socket import Action

#: Methods of Administration that a command may name.
COMMANDS = (
    *("status", "lag", "metrics", "stores", "store_get", "store_page"),
    *("add_thread", "remove_thread", "restart_thread", "pause", "resume", "snapshot"),
)
#: Conversions of their arguments.
TYPES: Mapping[str, tuple[type, ...]] = {
    "name": (str,),
    "timeout": (int, float),
    "directory": (str,),
    "store": (str,),
    "task_id": (str,),
    "key": (str,),
    "key_from": (str, type(None)),
    "key_to": (str, type(None)),
    "after": (str, type(None)),
    "limit": (int,),
}


def actions(administration: Administration) -> dict[str, Action]:
    """Return the control socket's actions by name."""
    return {command: _checked(command, getattr(administration, command)) for command in COMMANDS}


def _checked(command: str, method: Callable[..., Any]) -> Action:
    signature = inspect.signature(method)

    def action(**arguments: Any) -> Any:
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
