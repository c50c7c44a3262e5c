"""The state of a task, as Spark keeps it: a map whose calls do not wait for each other's responses.

PySpark sends a request to Spark's Java and waits for its response, some 200 µs for each value. The server reads its
requests in order from a socket, so many can be on their way: reads of several values are sent before the first response
is taken, and the response to an update is taken with a later one.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark import SparkFiles
from pyspark.sql.streaming import StatefulProcessorHandle
from pyspark.sql.streaming.proto.StateMessage_pb2 import StateRequest, StateResponse
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from penstock.topology.errors import StreamsError

#: Where an executor keeps what is read often; see blob_files.Blobs.
LOCAL_DIRECTORY = "penstock-state"
#: The only state variable: a task's whole state, in blobs by store and number.
STATE_VARIABLE = "blobs"
KEY_SCHEMA = StructType([StructField("store", StringType()), StructField("number", LongType())])
VALUE_SCHEMA = StructType([StructField("data", BinaryType())])

#: Requests that may be on their way. They must fit into a socket's buffers until the responses are taken: a request for
#: a value has some 80 bytes, the response to an update six.
REQUESTS_MAX = 128

_VERSION = 0  # of Spark's protocol
_header = struct.Struct(">ii")
_length = struct.Struct(">i")


class SparkState:
    """The state of the task that Spark is calling; see spark_stores.TaskState.

    finish() comes before any other call of Spark, which would take the responses for its own.
    """

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        """Register the variable; PySpark allows that in a processor's init() only."""
        handle.getMapState(STATE_VARIABLE, KEY_SCHEMA, VALUE_SCHEMA)
        self._socket: Any = handle._statefulProcessorApiClient.sockfile
        self._request = StateRequest()
        self._call = self._request.stateVariableRequest.mapStateCall
        self._call.stateName = STATE_VARIABLE
        self._waiting = 0

    @property
    def directory(self) -> Path:
        """The executor's, which Spark removes at the end of the application."""
        return Path(SparkFiles.getRootDirectory()) / LOCAL_DIRECTORY

    def read(self, store: str, numbers: Sequence[int]) -> list[bytes | None]:
        """Return blobs, None for one that does not exist."""
        self.finish()
        found: list[bytes] = []
        for number in numbers:
            if self._waiting == REQUESTS_MAX:
                found += self._responses(REQUESTS_MAX // 2)
            self._call.getValue.userKey = _pickled((store, number))
            self._send()
        found += self._responses()
        return [pickle.loads(value)[0] if value else None for value in found]  # noqa: S301 - Spark's

    def write(self, store: str, number: int, data: bytes) -> None:
        """Keep a blob."""
        update = self._call.updateValue
        update.userKey, update.value = _pickled((store, number)), _pickled((data,))
        self._change()

    def remove(self, store: str, number: int) -> None:
        """Remove an existing blob."""
        self._call.removeKey.userKey = _pickled((store, number))
        self._change()

    def finish(self) -> None:
        """Wait until Spark has all changes. Raises StreamsError if it refused one."""
        self._responses()

    def _change(self) -> None:
        if self._waiting == REQUESTS_MAX:
            self._responses(REQUESTS_MAX // 2)
        self._send()

    def _send(self) -> None:
        """Send the call as it is."""
        request = self._request.SerializeToString()
        self._socket.write(_header.pack(_VERSION, len(request)) + request)
        self._waiting += 1

    def _responses(self, left: int = 0) -> list[bytes]:
        """Return the values of the first responses, until only so many requests are on their way."""
        self._socket.flush()
        found = []
        while self._waiting > left:
            self._waiting -= 1
            found.append(self._response())
        return found

    def _response(self) -> bytes:
        (size,) = _length.unpack(self._received(_length.size))
        response = StateResponse.FromString(self._received(size))
        if response.statusCode:
            raise StreamsError(f"Spark's state refused a call: {response.errorMessage or 'no reason given'}")
        return bytes(response.value)

    def _received(self, size: int) -> bytes:
        data: bytes = self._socket.read(size)
        if len(data) < size:
            raise StreamsError("Spark's state has closed its connection; the log of the executor says why")
        return data


def _pickled(row: tuple[object, ...]) -> bytes:
    """Return a row as PySpark passes it to Java."""
    return pickle.dumps(row, pickle.HIGHEST_PROTOCOL)
