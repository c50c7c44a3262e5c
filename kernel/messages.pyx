"""Consumed records that the kernel has read (record_batches.pyx)."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, int64_t

cpdef str decode_text(bytes data):
    """Decode UTF-8 as Java does; topology/serdes/codecs.py registers the error handler."""
    return PyUnicode_DecodeUTF8(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), "penstock.java")


DECODE_TEXT = decode_text


@cython.final
@cython.no_gc
cdef class Origin:
    """The partition of messages. has_texts: whether their consumer reads their keys as texts."""


cdef object serialized(key):
    """Return a Message's key serialized."""
    return (<str>key).encode() if type(key) is str else key


@cython.final
@cython.no_gc
@cython.freelist(4096)
cdef class Message:
    """A consumed record, with the methods of confluent_kafka.Message.

    _key: bytes, or ASCII text (key_from).
    """

    @cython.nonecheck(True)  # one may have been created without an Origin
    def topic(self):
        """Return the topic."""
        return self._origin.topic

    @cython.nonecheck(True)
    def partition(self):
        """Return the partition."""
        return self._origin.partition

    def offset(self):
        """Return the offset."""
        return self._offset

    def key(self):
        """Return the serialized key."""
        return serialized(self._key)

    def value(self):
        """Return the serialized value."""
        return self._value

    def timestamp(self):
        """Return (timestamp type, milliseconds)."""
        return (self._timestamp_type, self._timestamp)

    def headers(self):
        """Return the headers, None if there are none."""
        return self._headers

    def error(self):
        """Return None."""
        return None


def context_fields(message, timestamp, headers):
    """Return the fields of a ProcessorRecordContext."""
    cdef Message ours
    if type(message) is not Message:
        return timestamp, message.offset(), message.partition(), message.topic(), headers, message.key(), message.value()
    ours = <Message>message
    return timestamp, ours._offset, ours._origin.partition, ours._origin.topic, headers, serialized(ours._key), ours._value


cdef inline int64_t timestamp_of(record, bint stamped) except? -1:
    if type(record) is Message:
        return (<Message>record)._timestamp
    return record.timestamp if stamped else record.timestamp()[1]


def run_from(list records not None, Py_ssize_t start, Py_ssize_t stop, int64_t before, bint stamped):
    """Return the end of a run of records, and the highest timestamp in it in ms.

    The run is the record at start, and those that follow up to stop as long as their timestamps are less than before;
    with the highest number, all of them. stamped: whether the records are StampedRecords; else they are messages.
    """
    cdef int64_t time, newest = timestamp_of(records[start], stamped)
    cdef Py_ssize_t end = start + 1
    while end < stop:
        time = timestamp_of(records[end], stamped)
        if time >= before and before != INT64_MAX:
            break
        newest = max(newest, time)
        end += 1
    return end, newest
