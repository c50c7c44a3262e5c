"""Requests and responses as objects of kio's types, which are generated from Kafka's schemas."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from kio.index import UnknownEntity, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.serial.readers import read_compact_string_nullable, read_int16, read_nullable_legacy_string

from .framing import Request, WireError

PRODUCE, API_VERSIONS = 0, 18


def answer_type(request: Request) -> Any:
    """Return the type of a request's response; raises WireError for a version that kio does not have."""
    if request.api_key == API_VERSIONS and request.version == 5:  # has the response of version 4 (KIP-1242)
        request = replace(request, version=4)
    return _known(load_response_schema, request)


def decode_answer(request: Request, data: bytes) -> Any:
    """Return the response to a request."""
    return _decode(answer_type(request), data)


def decode_request(request: Request) -> object:
    """Return a request's body; raises WireError for a version that kio does not have."""
    return _decode(_known(load_request_schema, request), request.data)


def encode_answer(request: Request, answer: object) -> bytes:
    """Return the frame, without its size, of a response to a request."""
    kind, buffer = answer_type(request), io.BytesIO()
    header = kind.__header_schema__
    entity_writer(header)(buffer, header(correlation_id=request.correlation_id))
    entity_writer(kind)(buffer, answer)
    return buffer.getvalue()


def wants_answer(request: Request) -> bool:
    """Return False for records that are sent with acks=0."""
    if request.api_key != PRODUCE:
        return True
    kind = load_request_schema(request.api_key, request.version)
    at = entity_reader(kind.__header_schema__)(request.data, 0)[1]
    read_text = read_compact_string_nullable if kind.__flexible__ else read_nullable_legacy_string
    at += read_text(request.data, at)[1]  # the transactional id
    return read_int16(request.data, at)[0] != 0


def error_codes(entity: Any) -> Iterator[ErrorCode]:
    """Yield all error codes of a response, at every level."""
    for field in fields(entity):
        value = getattr(entity, field.name)
        if isinstance(value, ErrorCode):
            yield value
        for item in value if isinstance(value, tuple) else ():
            if is_dataclass(item):
                yield from error_codes(item)


def _known(load: Callable[[int, int], object], request: Request) -> object:
    try:
        return load(request.api_key, request.version)
    except UnknownEntity as error:
        raise WireError(f"{request} is newer than kio's schemas: update kio") from error


def _decode(kind: Any, data: bytes) -> object:
    body_at = entity_reader(kind.__header_schema__)(data, 0)[1]
    return entity_reader(kind)(data, body_at)[0]
