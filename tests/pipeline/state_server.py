"""The part of Spark's Java that keeps a map state, behind a socket in memory: requests in, responses out, in order."""

from __future__ import annotations

import struct
from typing import Any

from pyspark.sql.streaming.proto.StateMessage_pb2 import StateRequest, StateResponse

_int = struct.Struct(">i")


class StateSocket:
    """A socket's file with the server behind it. refuse: a word for updates that it refuses.

    A client that waits for a response to no request would wait without end: here EOFError is raised.
    """

    def __init__(self, refuse: bytes = b"\x00none") -> None:
        self.rows: dict[bytes, bytes] = {}
        self.most_waiting = 0
        self._refuse = refuse
        self._buffered = b""
        self._responses: list[bytes] = []

    def write(self, data: bytes) -> None:
        self._buffered += data

    def flush(self) -> None:
        while self._buffered:
            version, size = struct.unpack_from(">ii", self._buffered)
            assert version == 0
            request, self._buffered = self._buffered[8 : 8 + size], self._buffered[8 + size :]
            response = self._response(StateRequest.FromString(request).stateVariableRequest.mapStateCall)
            self._responses += (_int.pack(len(response)), response)
            self.most_waiting = max(self.most_waiting, len(self._responses) // 2)

    def _response(self, call: Any) -> bytes:
        assert call.stateName == "blobs"
        what = call.WhichOneof("method")
        if what == "getValue":
            return bytes(StateResponse(value=self.rows.get(call.getValue.userKey, b"")).SerializeToString())
        if what == "updateValue":
            if self._refuse in call.updateValue.value:
                return bytes(StateResponse(statusCode=1, errorMessage="the disk is full").SerializeToString())
            self.rows[call.updateValue.userKey] = call.updateValue.value
        else:
            del self.rows[call.removeKey.userKey]
        return bytes(StateResponse().SerializeToString())

    def read(self, size: int) -> bytes:
        if not self._responses:
            raise EOFError("nobody has asked for this")
        data = self._responses.pop(0)
        assert len(data) == size
        return data


class ApiClient:
    """What a handle of Spark's knows its server by."""

    def __init__(self, socket: StateSocket) -> None:
        self.sockfile = socket


class Handle:
    """The part of Spark's handle that registers a map state."""

    def __init__(self, socket: StateSocket | None = None) -> None:
        self.socket = socket or StateSocket()
        self._statefulProcessorApiClient = ApiClient(self.socket)

    def getMapState(self, name: str, *_: Any) -> None:  # noqa: N802 - Spark's
        assert name == "blobs"
