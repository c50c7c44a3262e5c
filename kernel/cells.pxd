from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from penstock.kernel.rows cimport ChangedRows, KeyTable, StoredEntries, row_time


cdef struct link:  # of a queue of cells; it links places of links
    PyObject *cell  # NULL: the place is free, and the next free one is after it
    int before
    int after


cdef enum:  # the forms of a cell's row
    WHOLE  # row is it, None for nothing
    TIMED  # row is its held value, newest its timestamp
    COUNTED  # number is its held value, newest its timestamp


cdef class Cell:
    cdef readonly object key, headers
    cdef int64_t time, second
    cdef int64_t number, newest
    cdef int64_t timestamp
    cdef object row, message
    cdef int place  # of its link; 0: it is not in the table
    cdef int form
    cdef readonly bint is_changed
    cdef public bint used

    cdef object held(self, int64_t *time)


cdef inline bint has_row(Cell cell):
    return cell.form == COUNTED or cell.row is not None


cdef struct timed_cell:
    row_time at
    PyObject *cell


cdef enum:
    FEW = 6  # cells of a key that KeyCells has room for in itself: as many as the open hopping windows of most topologies


cdef class KeyCells:
    cdef object key
    cdef timed_cell *cells
    cdef Py_ssize_t count, room
    cdef timed_cell few[FEW]

    cdef Py_ssize_t place(self, int64_t time, int64_t second) noexcept
    cdef PyObject *get(self, int64_t time, int64_t second) noexcept
    cdef int insert(self, Cell cell) except -1
    cdef int grow(self) except -1
    cdef void remove(self, Cell cell) noexcept


cdef class CellTable:
    cdef int times
    cdef dict by_key
    cdef KeyTable by_record_key
    cdef link *links
    cdef int room, links_used, free_link
    cdef Py_ssize_t count
    cdef readonly Py_ssize_t dirty_count
    cdef StoredEntries stored
    cdef object deleting, read_held, row_type
    cdef public Py_ssize_t check_at

    cdef void begin(self) noexcept
    cdef int make_room(self) except -1
    cdef void append(self, int place, int queue) noexcept
    cdef void unlink(self, int place) noexcept
    cdef PyObject *find(self, key, int64_t time, int64_t second) except? NULL
    cdef list rows_of(self, int queue, bint changed)
    cdef int add(self, Cell cell) except -1
    cdef int add_to_key(self, Cell cell) except -1
    cdef int replace(self, Cell cell) except -1
    cdef int remove(self, Cell cell) except -1
    cdef int changed_by(self, Cell cell, int64_t timestamp, headers, message) except -1
    cdef object read(self, key, int64_t *time)
    cdef object read_sent(self, key, int64_t *time)
    cdef object read_below(self, key, int64_t *time)
    cdef object stored_row(self, key, int64_t *time)
    cdef bint put(self, key, int64_t time, int64_t second, held, int64_t timestamp, headers, message) except -1
    cpdef list key_values(self, bytes record_key, int64_t time_from, int64_t time_to)
    cdef Cell load(self, key, int64_t time, int64_t second)
    cdef bint is_later(self, int64_t time) noexcept
    cdef ChangedRows taken(self, Py_ssize_t most)
    cdef int drop(self, Cell cell) except -1


cdef class CellUpdates:
    cdef readonly CellTable table
    cdef object load
    cdef object hold
    cdef object read
    cdef object native
    cdef bint grew

    cdef Cell find(self, key, int64_t time, int64_t second)
    cdef bint put(self, Cell cell, int64_t timestamp, headers, message) except -1
    cdef bint count(self, key, int64_t time, int64_t second, int64_t timestamp, headers, message) except -1
    cdef bint aggregate(
        self, initializer, aggregator, key, int64_t time, int64_t second, given, value, int64_t timestamp, headers, message
    ) except -1
    cdef bint reduce(
        self, reducer, key, int64_t time, int64_t second, value, int64_t timestamp, headers, message
    ) except -1
    cdef bint replace(self, key, value, int64_t timestamp, headers, message) except -1
    cdef object own(self, held)
    cdef bint put_new(self, Cell cell, new, int64_t newest, int64_t timestamp, headers, message) except -1
    cdef object held(self, new)
    cdef bint put_held(self, Cell cell, held, int64_t newest, int64_t timestamp, headers, message) except -1
    cdef bint is_held(self, new) except -1
