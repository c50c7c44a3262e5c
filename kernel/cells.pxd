from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from penstock.kernel.rows cimport ChangedRows, StoredEntries


cdef struct stamped:
    long long stamp
    PyObject *cell


cdef enum:  # the forms of a cell's row
    WHOLE  # row is it, None for nothing
    TIMED  # row is its held value, newest its timestamp
    COUNTED  # number is its held value, newest its timestamp


cdef class Cell:
    cdef int64_t number, newest
    cdef Py_ssize_t place  # among the changed cells, from 1; 0: it has not changed since the last flush
    cdef long long timestamp
    cdef int form
    cdef bint used
    cdef object row
    cdef object headers
    cdef object message
    cdef object key

    cdef object value(self)
    cdef object held(self, int64_t *time)


cdef inline bint has_row(Cell cell):
    return cell.form == COUNTED or cell.row is not None


cdef class KeyIndex:
    cdef dict by_key
    cdef Py_ssize_t added

    cdef list keys_of(self, record_key, dict entries)
    cdef int add(self, key) except -1
    cdef int insert(self, tuple key) except -1


cdef class CellTable:
    cdef readonly dict entries
    cdef stamped *puts  # the changed cells, each with the number of its last put
    cdef readonly Py_ssize_t dirty_count
    cdef Py_ssize_t dirty_room
    cdef long long last_stamp
    cdef StoredEntries stored
    cdef object deleting, read_held, row_type
    cdef KeyIndex index
    cdef public Py_ssize_t check_at

    cdef object read(self, key, int64_t *time)
    cdef object read_sent(self, key, int64_t *time)
    cdef object read_below(self, key, int64_t *time)
    cdef object stored_row(self, key, int64_t *time)
    cdef bint put(self, key, held, timestamp, headers, message) except -1
    cdef int changed(self, Cell cell, int64_t timestamp, headers, message) except -1
    cpdef list key_values(self, bytes record_key, int64_t time_from, int64_t time_to)
    cdef Cell load(self, object key)
    cdef bint is_later(self, object key) except -1
    cdef int begin_changes(self, Cell cell) except -1
    cdef void end_changes(self, Cell cell) noexcept
    cdef ChangedRows taken(self, Py_ssize_t most)
    cdef int drop(self, Cell cell) except -1


cdef class CellUpdates:
    cdef readonly CellTable table
    cdef object load
    cdef object hold
    cdef object read
    cdef object native
    cdef bint grew

    cdef Cell find(self, object key)
    cdef bint put(self, Cell cell, long long timestamp, object headers, object message) except -1
    cpdef bint count(self, cache_key, long long timestamp, headers, message) except -1
    cpdef bint aggregate(
        self, initializer, aggregator, cache_key, key, value, int64_t timestamp, headers, message
    ) except -1
    cpdef bint reduce(self, reducer, cache_key, value, int64_t timestamp, headers, message) except -1
    cpdef bint replace(self, cache_key, value, int64_t timestamp, headers, message) except -1
    cdef object own(self, held)
    cdef bint put_new(self, Cell cell, new, int64_t newest, int64_t timestamp, headers, message) except -1
    cdef object held(self, new)
    cdef bint put_held(self, Cell cell, held, int64_t newest, int64_t timestamp, headers, message) except -1
    cdef bint is_held(self, new) except -1
