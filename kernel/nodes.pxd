from libc.stdint cimport int64_t

from penstock.kernel.conversions cimport converted, translated


cdef class RecordContext:
    cdef public object message, headers, at, tracer, on_due
    cdef public int64_t timestamp, stream_time_ms, due_ms
    cdef object written_value, written_serde
    cdef bytes written_data


cdef class Tally:
    cdef int64_t count
    cdef double sum, lowest, highest

    cdef void clear(self) noexcept
    cdef void note(self, double value) noexcept


cdef enum:  # what nodes do with keys, in bits
    NEEDS_BYTES = 1
    READS = 2


cdef class KeyReader:
    cdef readonly object serde, decode
    cdef bint by_topic


cdef class Key:
    cdef bytes data
    cdef bint is_read, is_windowed
    cdef int64_t start, end
    cdef object value
    cdef KeyReader reader

    cdef object read(self)
    cdef bytes windowed_data(self, int times_size)


cdef inline Key key_from(bytes data, KeyReader reader):
    cdef Key key = Key.__new__(Key)
    key.data, key.reader = data, reader
    return key


cdef inline Key windowed_key_from(bytes data, KeyReader reader, int64_t start, int64_t end):
    cdef Key key = key_from(data, reader)
    key.is_windowed, key.start, key.end = True, start, end
    return key


cdef inline object key_of(object key):
    """Return the key itself."""
    return (<Key>key).read() if type(key) is Key else key


cdef inline bytes known_bytes_of(object key, object serde, object encode):
    """Return the bytes that encode writes for a key, None if it must be called. serde: it belongs to that."""
    if type(key) is not Key or (<Key>key).reader.serde is not serde or (<Key>key).is_windowed:
        return None
    return translated(encode, (<Key>key).data) if (<Key>key).reader.by_topic else (<Key>key).data


cdef inline bytes key_bytes_of(object key, object serde, object encode):
    """Return a key's bytes; encode: see Rows."""
    data = known_bytes_of(key, serde, encode)
    if data is not None:
        return data
    key = key_of(key)
    return <bytes?>(key if encode is None else converted(encode, key))


cdef inline bint has_windowed_bytes(object key, object inner):
    """Return whether a windowed key is bytes that do not depend on the topic, as the serde of the key inside writes them."""
    if type(key) is not Key or not (<Key>key).is_windowed:
        return False
    return (<Key>key).reader.serde is inner and not (<Key>key).reader.by_topic


cdef inline object written_data_of(RecordContext task, object value, object serde):
    """Return the bytes that a serde has just written for a value that no user code has seen since, None if there are none."""
    if value is None or value is not task.written_value or task.written_serde is not serde:
        return None
    return task.written_data


cdef inline tuple fields_of(object found):
    """Return a named tuple as a tuple."""
    if not isinstance(found, tuple):
        raise TypeError(f"a named tuple is needed, not {found!r}")
    return <tuple>found


cdef object windowed_key(key, int64_t start, int64_t end)


cdef class Node:
    cdef readonly RecordContext task
    cdef readonly object name
    cdef readonly Node child

    cdef int process(self, key, value, int64_t timestamp, headers) except -1
    cdef int change(self, key, new, old, bint is_latest, int64_t timestamp, headers) except -1
    cpdef int use_of_key(self, serde) except -1
    cpdef dict known_keys(self, serde)


cdef class End(Node):
    pass


cdef class ChangeNode(Node):
    pass


cdef int traced(Node to, tracer, key, value, int64_t timestamp, headers) except -1
cdef int traced_change(Node to, tracer, key, new, old, bint is_latest, int64_t timestamp, headers) except -1


cdef inline int deliver(Node to, key, value, int64_t timestamp, headers) except -1:
    """Let a node process a record."""
    if to.task is None or to.task.tracer is None:
        return to.process(key, value, timestamp, headers)
    return traced(to, to.task.tracer, key, value, timestamp, headers)


cdef inline int deliver_change(Node to, key, new, old, bint is_latest, int64_t timestamp, headers) except -1:
    """Let a node process a change."""
    if to.task is None or to.task.tracer is None:
        return to.change(key, new, old, is_latest, timestamp, headers)
    return traced_change(to, to.task.tracer, key, new, old, is_latest, timestamp, headers)
