"""Consumed records that the kernel has read (record_batches.pyx), and iteration over a batch of any kind of records."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.ref cimport PyObject
from cpython.unicode cimport PyUnicode_DecodeUTF8

from penstock.kernel.codecs cimport Rewriter

cdef extern from *:
    """
    static inline void row_put(PyObject *row, Py_ssize_t index, PyObject *item) {
        PyObject *before = PyTuple_GET_ITEM(row, index);
        Py_INCREF(item);
        PyTuple_SET_ITEM(row, index, item);
        Py_DECREF(before);
    }

    /* Put six objects into a tuple that only its owner has; return whether that was so. */
    static inline int row_fill(PyObject *row, PyObject *a, PyObject *b, PyObject *c, PyObject *d, PyObject *e,
                               PyObject *f) {
        if (Py_REFCNT(row) > 1) return 0;
        row_put(row, 0, a);
        row_put(row, 1, b);
        row_put(row, 2, c);
        row_put(row, 3, d);
        row_put(row, 4, e);
        row_put(row, 5, f);
        return 1;
    }
    """
    bint row_fill(PyObject *, object, object, object, object, object, object)


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
    """See topology/operators/record_context.py."""
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


@cython.final
cdef class Unpacked:
    """Iterates over messages as (message, key, value, timestamp, stream time, headers), key and value serialized.

    read_key, read_value: compiled functions for keys and values that are not None. With a Rewriter as read_key, keys
    stay bytes. stream_time: in ms, before the first message; each message advances it, unless its timestamp is
    negative, which is returned as None. message: the last message, whose key or value may be unreadable.
    """

    cdef object messages
    cdef object read_key
    cdef bint reads_texts
    cdef Rewriter rewriter
    cdef object read_value
    cdef readonly object message
    cdef object stream_time, time_before
    cdef int64_t newest
    cdef tuple row

    def __init__(self, messages, read_key=None, stream_time=-1, read_value=None):
        self.messages = iter(messages)
        self.read_key = read_key
        self.reads_texts = read_key is DECODE_TEXT
        self.rewriter = read_key if type(read_key) is Rewriter else None
        self.read_value = read_value
        self.stream_time = self.time_before = stream_time
        self.newest = stream_time
        self.row = (None,) * 6

    def __iter__(self):
        return self

    def __next__(self):
        message = next(self.messages)
        cdef Message ours
        self.message = message
        self.time_before = self.stream_time
        if type(message) is Message:
            ours = <Message>message
            key = self.key_of(ours)
            value = self.value_of(ours._value)
            at = self.timestamp(ours._timestamp)
            headers = ours._headers
        else:
            key = message.key()
            if self.read_key is not None and key is not None:
                key = self.read_key(key)
            value = self.value_of(message.value())
            at = self.timestamp(message.timestamp()[1])
            headers = message.headers()
        # The tuple is reused if the loop has unpacked it and nothing else refers to it, as zip() does.
        if not row_fill(<PyObject *>self.row, message, key, value, at, self.stream_time, headers):
            self.row = (message, key, value, at, self.stream_time, headers)
        return self.row

    def without_last(self):
        """Take the last message, which is dropped, out of the stream time, and return that."""
        self.newest = self.stream_time = self.time_before
        return self.stream_time

    cdef object timestamp(self, int64_t timestamp):
        if timestamp > self.newest:
            self.newest = timestamp
            self.stream_time = timestamp
        elif timestamp < 0:
            return None
        # Most records have the timestamp of the previous one, whose int object is reused.
        return self.stream_time if timestamp == self.newest else timestamp

    cdef object value_of(self, value):
        return value if value is None or self.read_value is None else self.read_value(value)

    cdef object key_of(self, Message message):
        if not self.reads_texts:
            key = serialized(message._key)
            if self.rewriter is not None and key is not None:
                return self.rewriter.rewrite(<bytes>key)
            return key if key is None or self.read_key is None else self.read_key(key)
        if type(message._key) is not bytes:
            return message._key
        message._origin.has_texts = True
        return decode_text(<bytes>message._key)
