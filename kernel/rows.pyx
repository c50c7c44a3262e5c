# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""What a store has in memory between two commits, compiled: statestore/row_buffer.py in Python.

find, newest and put_timed are what fused loops do with a row: topology/operators/fused_rows.py in Python.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    TIME_BYTES = 8  # a row begins with its timestamp, big endian


cdef int64_t read_time(const char *data) noexcept:
    cdef uint64_t time = 0
    cdef int i
    for i in range(TIME_BYTES):
        time = time << 8 | <unsigned char>data[i]
    return <int64_t>time


cdef void write_time(char *to, int64_t time) noexcept:
    cdef int i
    for i in range(TIME_BYTES):
        to[i] = <char>(<uint64_t>time >> 8 * (TIME_BYTES - 1 - i))


@cython.final
cdef class RowBuffer:
    """See statestore.row_buffer.RowBuffer."""

    cdef readonly dict rows
    cdef public dict recent
    cdef public Py_ssize_t found
    cdef public object index
    cdef public Py_ssize_t check_at
    cdef object read
    cdef object check
    cdef int64_t row_time  # of the row that find returned

    def __init__(self, read, check, Py_ssize_t check_at):
        self.rows = {}
        self.recent = {}
        self.check_at = check_at
        self.read = read
        self.check = check

    def get(self, bytes key not None):
        """Return a row, None if there is none."""
        return self.row(key)

    cdef object row(self, bytes key):
        cdef PyObject *value = PyDict_GetItemWithError(self.rows, key)
        if value is NULL:
            value = PyDict_GetItemWithError(self.recent, key)
            if value is NULL:
                return self.read(key)
            self.found += 1
        return <object>value

    def put(self, bytes key not None, value):
        """Set a row, or delete it."""
        self.set(key, value)

    cdef int set(self, bytes key, value) except -1:
        if self.index is not None and key not in self.rows:
            self.index.add(key)
        self.rows[key] = value
        if len(self.rows) >= self.check_at:
            self.check()
        return 0

    def clear(self):
        """Forget the rows, not those that are on disk."""
        self.rows.clear()
        self.index = None

    def find(self, bytes key not None):
        """Return the value of a row that begins with its timestamp, None if there is none; see newest."""
        cdef object row = self.row(key)
        if row is None:
            return None
        cdef Py_ssize_t size = PyBytes_GET_SIZE(<bytes?>row) - TIME_BYTES
        if size < 0:
            raise ValueError(f"a row of {size + TIME_BYTES} bytes has no timestamp")
        self.row_time = read_time(PyBytes_AS_STRING(row))
        return PyBytes_FromStringAndSize(PyBytes_AS_STRING(row) + TIME_BYTES, size)

    def newest(self, timestamp):
        """Return the later one of the timestamp of the row that find has returned and this one."""
        return timestamp if <int64_t>timestamp > self.row_time else self.row_time

    def put_timed(self, bytes key not None, timestamp, bytes value not None):
        """Set a row that begins with its timestamp."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(value)
        row = PyBytes_FromStringAndSize(NULL, TIME_BYTES + size)
        write_time(PyBytes_AS_STRING(row), timestamp)
        memcpy(PyBytes_AS_STRING(row) + TIME_BYTES, PyBytes_AS_STRING(value), size)
        self.set(key, row)
