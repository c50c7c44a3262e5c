# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""The changes that suppress holds back: the newest of each key, in the order in which the keys were first buffered."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject
from libc.stdint cimport int64_t
from libc.string cimport memcpy

from heapq import heappop, heappush

from penstock.kernel.codecs import join_parts
from penstock.kernel.nodes cimport fields_of
from penstock.kernel.rows cimport TIME_BYTES, write_time

cdef enum:
    PLAIN_CONTEXT = 8 + 8 + 4  # bytes of a context that has neither topic nor headers
    BUFFER_TIME = 8  # bytes that a buffered value has besides its key and its parts

cdef enum:  # of a ProcessorRecordContext
    TIMESTAMP, OFFSET, PARTITION, TOPIC, HEADERS


cpdef Py_ssize_t context_size(context) except -1:
    """Return the size in bytes that Kafka Streams counts for a ProcessorRecordContext."""
    cdef tuple fields = fields_of(context)
    cdef Py_ssize_t size = PLAIN_CONTEXT
    if fields[TOPIC] is not None:
        size += len(<str?>fields[TOPIC])
    if fields[HEADERS]:
        for name, value in fields[HEADERS]:
            size += len(name) + (0 if value is None else len(value))
    return size


cpdef Py_ssize_t value_size(bytes prior, bytes old, bytes new, context) except -1:
    """Return the size in bytes that Kafka Streams counts for a BufferValue with these fields."""
    cdef Py_ssize_t size = context_size(context)
    if prior is not None:
        size += PyBytes_GET_SIZE(prior)
    if old is not None and old is not prior and old != prior:
        size += PyBytes_GET_SIZE(old)
    if new is not None:
        size += PyBytes_GET_SIZE(new)
    return size


@cython.final
@cython.no_gc  # what it has never leads back to it
@cython.freelist(1024)
cdef class BufferedChange:
    """A buffered key: its position in time order (ms), the parts of its BufferValue, and its counted size in bytes."""

    cdef readonly int64_t time
    cdef readonly bytes prior, old, new
    cdef readonly object context
    cdef readonly Py_ssize_t size

    def logged(self, bytes headers not None):
        """Return the value of its changelog record; headers: those of its context, with their number."""
        cdef tuple context = fields_of(self.context)
        topic = b"" if context[TOPIC] is None else (<str?>context[TOPIC]).encode()
        cdef bytes value = join_parts(
            context[TIMESTAMP], context[OFFSET], topic, context[PARTITION], headers, self.prior, self.old, self.new
        )
        cdef Py_ssize_t size = PyBytes_GET_SIZE(value)
        data = PyBytes_FromStringAndSize(NULL, size + TIME_BYTES)
        memcpy(PyBytes_AS_STRING(data), PyBytes_AS_STRING(value), size)
        write_time(PyBytes_AS_STRING(data) + size, self.time)
        return data


@cython.final
cdef class BufferedChanges:
    """All buffered keys. size: in bytes. dirty: the changes since the last flush, None for a key that has left."""

    cdef dict buffered, undo
    cdef list queue  # a heap of (time, key); those whose key is no longer buffered at this time are skipped
    cdef readonly dict dirty
    cdef readonly Py_ssize_t size

    def __cinit__(self):
        self.buffered, self.undo, self.dirty, self.queue = {}, {}, {}, []

    def __len__(self):
        return len(self.buffered)

    cpdef BufferedChange get(self, bytes key):
        """Return what is buffered of a key, None if nothing is."""
        cdef PyObject *found = PyDict_GetItemWithError(self.buffered, key)
        return None if found is NULL else <BufferedChange>found

    def put(self, bytes key not None, int64_t time, bytes old, bytes new, context):
        """Buffer a change. A key that is buffered keeps its time, and its value before that."""
        cdef BufferedChange before = self.get(key)
        if before is None:
            self.dirty[key] = self.set(key, before, time, old, old, new, context)
        else:
            self.dirty[key] = self.set(key, before, before.time, before.prior, old, new, context)

    def restore(self, bytes key not None, int64_t time, bytes prior, bytes old, bytes new, context):
        """Buffer what a changelog record has."""
        self.set(key, self.get(key), time, prior, old, new, context)

    def remove(self, bytes key not None):
        """Remove a key, if it is buffered, for which a changelog has a tombstone."""
        self.replace(key, self.get(key), None)

    def evict(self, bytes key not None):
        """Remove a key that has been sent downstream."""
        self.remove(key)
        self.dirty[key] = None

    cdef BufferedChange set(
        self, bytes key, BufferedChange before, int64_t time, bytes prior, bytes old, bytes new, context
    ):
        cdef BufferedChange change = BufferedChange.__new__(BufferedChange)
        change.time, change.prior, change.old, change.new, change.context = time, prior, old, new, context
        change.size = BUFFER_TIME + PyBytes_GET_SIZE(key) + value_size(prior, old, new, context)
        self.replace(key, before, change)
        return change

    cdef int replace(self, bytes key, BufferedChange before, BufferedChange change) except -1:
        self.undo.setdefault(key, before)
        if before is not None:
            self.size -= before.size
        if change is None:
            self.buffered.pop(key, None)
            return 0
        self.buffered[key] = change
        self.size += change.size
        if before is None or before.time != change.time:
            heappush(self.queue, (change.time, key))
        return 0

    def first(self):
        """Return (key, change) of what was buffered first, None if nothing is buffered."""
        cdef BufferedChange change
        cdef int64_t time
        while self.queue:
            time, key = self.queue[0]
            change = self.get(key)
            if change is not None and change.time == time:
                return key, change
            heappop(self.queue)
        return None

    def first_until(self, int64_t time):
        """Return the same if it was buffered at this time or before, otherwise None."""
        cdef int64_t first
        while self.queue:
            first = (<tuple>self.queue[0])[0]
            if first > time:
                return None
            found = self.first()
            if found is not None and (<BufferedChange>(<tuple>found)[1]).time <= time:
                return found
        return None

    def commit(self):
        """Keep what has changed."""
        self.undo.clear()

    def rollback(self):
        """Return to what was buffered at the last commit."""
        for key, before in list(self.undo.items()):
            self.replace(key, self.get(key), before)
        self.undo.clear()
        self.dirty.clear()

    def clear(self):
        """Drop everything."""
        self.buffered.clear()
        self.queue.clear()
        self.dirty.clear()
        self.undo.clear()
        self.size = 0
