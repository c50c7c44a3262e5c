"""Consumed records as the kernel takes them from librdkafka (fetch.pyx); a loop's way through a batch of any kind."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8


cpdef str decode_text(bytes data):
    """Return a text as Java reads it; see topology/serdes.py, which knows the error handler."""
    return PyUnicode_DecodeUTF8(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), "penstock.java")


@cython.final
@cython.no_gc
@cython.freelist(4096)
cdef class Message:
    """A consumed record, or an event of its partition; its methods are confluent_kafka.Message's."""

    def topic(self):
        """Return the topic."""
        return self._topic

    def partition(self):
        """Return the partition."""
        return self._partition

    def offset(self):
        """Return the offset."""
        return self._offset

    def key(self):
        """Return the serialized key."""
        return self._key

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
        """Return the KafkaError of an event, None for a record."""
        return self._error


def timestamps(messages):
    """Return the timestamp of each message in ms."""
    return [
        (<Message>message)._timestamp if type(message) is Message else message.timestamp()[1] for message in messages
    ]


@cython.final
cdef class Unpacked:
    """Iterates over messages as (message, key, value, timestamp, headers), key and value serialized.

    reads_keys: keys are texts, and read here. message: the one that was looked at last, whose key may be no text.
    """

    cdef object messages
    cdef bint reads_keys
    cdef readonly object message

    def __init__(self, messages, bint reads_keys=False):
        self.messages = iter(messages)
        self.reads_keys = reads_keys

    def __iter__(self):
        return self

    def __next__(self):
        message = next(self.messages)
        cdef Message ours
        self.message = message
        if type(message) is not Message:
            return (message, self.read(message.key()), message.value(), message.timestamp()[1], message.headers())
        ours = <Message>message
        return (message, self.read(ours._key), ours._value, ours._timestamp, ours._headers)

    cdef object read(self, key):
        return decode_text(key) if self.reads_keys and key is not None else key
