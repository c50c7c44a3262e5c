"""Responses with an error code: generated in place of a broker's, or a broker's response with its codes replaced."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, TypeVar, get_args, get_origin, get_type_hints

from kio.schema.errors import ErrorCode

from .framing import Request, WireError
from .messages import answer_type, decode_answer, decode_request, encode_answer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

D = TypeVar("D", bound="DataclassInstance")

#: Read-only APIs: the broker responds, and the error codes of its response are replaced.
_READS = {
    "ApiVersions",
    "DescribeCluster",
    "Fetch",
    "FindCoordinator",
    "ListOffsets",
    "Metadata",
    "OffsetFetch",
    "OffsetForLeaderEpoch",
}
#: Errors of a whole request, even if the API has an error code for each partition.
_WHOLE = {ErrorCode.fetch_session_id_not_found, ErrorCode.invalid_fetch_session_epoch, ErrorCode.rebootstrap_required}
#: Names of a response's field for the partition number, if the request lists plain numbers.
_PARTITION = {"partition_index", "partition", "index"}
_EMPTY: dict[str, object] = {
    "string": "",
    "bytes": b"",
    "bool": False,
    "uuid": None,
    "timedelta_i32": datetime.timedelta(0),
    "timedelta_i64": datetime.timedelta(0),
}


def error_of(name: str) -> ErrorCode:
    """Return an error by Kafka's name, e.g. NOT_COORDINATOR; raises WireError if there is none."""
    try:
        return ErrorCode[name.lower()]
    except KeyError:
        raise WireError(f"Kafka has no error {name}: see its protocol guide for the names") from None


def reaches_broker(request: Request) -> bool:
    """Return whether a request goes to the broker before it fails with an error."""
    return request.api in _READS


def refusal(request: Request, error: ErrorCode) -> bytes:
    """Return a generated response, with an error for everything that the request names."""
    return encode_answer(request, _made_up(answer_type(request), decode_request(request), error))


def with_error(request: Request, answer: bytes, error: ErrorCode) -> bytes:
    """Return a broker's response with an error: in topics and partitions, or else in the response as a whole."""
    decoded = decode_answer(request, answer)
    whole = error in _WHOLE or not _has_codes_below(type(decoded))
    return encode_answer(request, replace(decoded, error_code=error) if whole else _with_errors_below(decoded, error))


def _has_codes_below(kind: object) -> bool:
    items = filter(None, map(_item_type, get_type_hints(kind).values()))
    return any("error_code" in item.__dataclass_fields__ or _has_codes_below(item) for item in items)


def _with_errors_below(entity: D, error: ErrorCode) -> D:
    changes: dict[str, object] = {}
    for name, items in _entities(entity):
        changes[name] = tuple(_with_errors_below(_failed(item, error), error) for item in items)
    return replace(entity, **changes)


def _failed(entity: D, error: ErrorCode) -> D:
    names = {field.name for field in fields(entity)}
    changes: dict[str, object] = {}
    if "error_code" in names:
        changes["error_code"] = error
        if "records" in names:
            changes["records"] = None
    return replace(entity, **changes)


def _entities(entity: DataclassInstance) -> Iterator[tuple[str, tuple[DataclassInstance, ...]]]:
    """Yield the non-empty lists of entities in an entity."""
    for field in fields(entity):
        value = getattr(entity, field.name)
        if isinstance(value, tuple) and value and is_dataclass(value[0]):
            yield field.name, value


def _made_up(kind: type[D], asked: object, error: ErrorCode) -> D:
    """Return a response, or a part of it, with an error and with the names and numbers of the request or its part."""
    types = get_type_hints(kind)
    values: dict[str, object] = {}
    lists = iter(_lists(asked))
    for field in fields(kind):
        if field.metadata.get("kafka_type") == "error_code":
            values[field.name] = error
        elif "tag" not in field.metadata:
            item = _item_type(types[field.name])
            if item is None:
                values |= _value(field, types[field.name], asked)
            elif "error_code" in kind.__dataclass_fields__:
                values[field.name] = ()  # the error is that of the whole entity
            else:
                values[field.name] = tuple(_made_up(item, part, error) for part in next(lists, ()))
    return kind(**values)


def _lists(asked: object) -> Iterator[tuple[object, ...]]:
    if is_dataclass(asked):
        values = (getattr(asked, field.name) for field in fields(asked))
        yield from (value for value in values if isinstance(value, tuple))


def _item_type(hint: object) -> type[DataclassInstance] | None:
    """Return the type of the entities in a list, None if the hint is not a list of entities."""
    for choice in (hint, *get_args(hint)):
        if get_origin(choice) is tuple and is_dataclass(get_args(choice)[0]):
            found: type[DataclassInstance] = get_args(choice)[0]
            return found
    return None


def _value(field: Field[object], hint: object, asked: object) -> dict[str, object]:
    """Return a plain field's value by its name; an empty dict if the default is right."""
    if isinstance(asked, int) and field.name in _PARTITION:
        return {field.name: asked}
    if hasattr(asked, field.name) and not isinstance(asked, int):
        return {field.name: getattr(asked, field.name)}
    if field.default is not MISSING:
        return {}
    if type(None) in get_args(hint):
        return {field.name: None}
    return {field.name: () if get_origin(hint) is tuple else _EMPTY.get(field.metadata["kafka_type"], 0)}
