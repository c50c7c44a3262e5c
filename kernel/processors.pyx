# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""What a user's processor calls: copies of its records with another field, and the get and put of key-value stores."""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.long cimport PyLong_AsLongLongAndOverflow
from libc.stdint cimport int64_t

from penstock.kernel.conversions cimport converted
from penstock.kernel.named_tuples cimport tuple_of_four
from penstock.kernel.nodes cimport RecordContext
from penstock.kernel.rows cimport RowBuffer, timed
from penstock.kernel.sinks cimport PyUnicode_1BYTE_DATA, PyUnicode_GET_LENGTH, Changelog, is_ascii

def with_field(type record not None, int place):
    """Return the method of a record that copies it with another field; place: of the field."""
    def copy(self, value):
        if not isinstance(self, record):
            raise TypeError(f"a {record.__name__} is needed, not {self!r}")
        given = <tuple>self
        return tuple_of_four(
            record,
            value if place == 0 else given[0],
            value if place == 1 else given[1],
            value if place == 2 else given[2],
            given[3],
        )

    return copy


def record_maker(type record not None):
    """Return the function that makes a record of its four fields, as they are."""
    def make(key, value, timestamp, headers):
        return tuple_of_four(record, key, value, timestamp, headers)

    return make


@cython.final
cdef class ValueLogger:
    """Called with a changelog key and a value: writes the change, and returns the bytes of the row, None if it is deleted.

    See _log_plain and _log_timestamped in statestore/stores/values.py. encode: for anything but None; None if values are
    bytes. log_any: the same for (value, timestamp), of any kind; None for plain values.
    """

    cdef Changelog changelog
    cdef RecordContext task
    cdef object encode, log_any

    def __init__(self, Changelog changelog not None, RecordContext task not None, encode, log_any=None):
        self.changelog, self.task = changelog, task
        self.encode, self.log_any = encode, log_any

    def __call__(self, key, value):
        return self.log(key, value)

    cdef object log(self, key, value):
        cdef int overflow = 0
        cdef int64_t time
        if value is None:
            self.changelog.write(key, None, self.task.timestamp)
            return None
        if self.log_any is None:
            data = value if self.encode is None else converted(self.encode, value)
            self.changelog.write(key, data, self.task.timestamp)
            return data
        if not isinstance(value, tuple) or len(<tuple>value) != 2 or type((<tuple>value)[1]) is not int:
            return self.log_any(key, value)
        plain = (<tuple>value)[0]
        time = PyLong_AsLongLongAndOverflow((<tuple>value)[1], &overflow)
        if overflow or plain is None:
            return self.log_any(key, value)
        data = plain if self.encode is None else converted(self.encode, plain)
        if type(data) is not bytes:
            return self.log_any(key, value)
        row = timed(time, <bytes>data)
        self.changelog.write(key, data, time)
        return row


cdef class KeyValueCalls:
    """The get and put of a key-value store. A subclass has its rows, a BytesStore.

    Until work_on, and after leave, everything goes through the rows; with a RowBuffer get and put are in C.
    """

    cdef RowBuffer buffer
    cdef object encode_key, decode, log_value, refused, note
    cdef ValueLogger logger
    cdef bint has_texts, decodes_none

    def work_on(self, RowBuffer buffer, encode_key, bint has_texts, decode, bint decodes_none, log_value, refused, note):
        """Set what get and put need.

        buffer: of the rows, None if they have none. encode_key: from a key to its bytes; has_texts: it writes texts, as
        UTF-8. decode: from the bytes of a row to its value, None if values are bytes; decodes_none: also without a row.
        log_value(key's bytes, value): logs a change and returns the bytes of the row. refused(value, error): may raise
        a better error for a value that cannot be written. note(found, key): gets what was found; None if nothing does.
        """
        self.buffer, self.encode_key, self.has_texts = buffer, encode_key, has_texts
        self.decode, self.decodes_none = decode, decodes_none
        self.log_value, self.refused, self.note = log_value, refused, note
        self.logger = log_value if type(log_value) is ValueLogger else None

    def leave(self):
        """Leave the RowBuffer, because the store is closed."""
        self.buffer = None

    cdef inline bytes key_bytes(self, key):
        if self.has_texts and is_ascii(key):
            return PyBytes_FromStringAndSize(<const char *>PyUnicode_1BYTE_DATA(<str>key), PyUnicode_GET_LENGTH(<str>key))
        return <bytes?>self.encode_key(key)

    def get(self, key):
        """Return the value of a key, None if there is none. The object is the caller's own."""
        cdef bytes row_key = self.key_bytes(key)
        row = (<object>self).rows.get(row_key) if self.buffer is None else self.buffer.row(row_key)
        if self.decode is None or (row is None and not self.decodes_none):
            found = row
        else:
            found = converted(self.decode, row)
        if self.note is not None:
            self.note(found, key)
        return found

    def put(self, key, value):
        """Set the value of a key; None deletes it. The object stays the caller's own.

        Raises what the serdes raise for a key or value that they cannot write; the store is then unchanged.
        """
        cdef bytes row_key = self.key_bytes(key)
        try:
            row = self.log_value(row_key, value) if self.logger is None else self.logger.log(row_key, value)
        except Exception as error:
            self.refused(value, error)
            raise
        if self.buffer is None:
            (<object>self).rows.put(row_key, row)
        else:
            self.buffer.set(row_key, row)
