"""Consumed records that the kernel has read (record_batches.pyx)."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8

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


def timestamps(messages):
    """Return the timestamp of each message in ms."""
    return [
        (<Message>message)._timestamp if type(message) is Message else message.timestamp()[1] for message in messages
    ]
