# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""The cells of a record cache and what is done to them for each record, compiled.

A Cell looks like the list that it stands for (topology.store_interfaces.Cell), and keeps a count as a number, not as a
tuple of two objects. What the functions here do is written in Python beside them: topology/operators/fused_cells.py.
"""

cimport cython
from cpython.dict cimport PyDict_GetItemWithError, PyDict_Next
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.object cimport PyObject
from libc.stdlib cimport free, malloc, qsort

from penstock.kernel.flat_dict cimport is_flat

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object)
    Py_ssize_t Py_REFCNT(object)

cdef enum:
    VALUE, STAMP, TIMESTAMP, HEADERS, MESSAGE, USED, KEY

#: What read() returns for a key that is not cached.
NOT_CACHED = object()


@cython.final
@cython.no_gc  # a row never leads back to its cell
@cython.freelist(1024)
cdef class Cell:
    """An entry of a record cache: [value, stamp, timestamp, headers, message, used, key]."""

    cdef long long number  # the count, if the row is one
    cdef long long newest  # and its timestamp
    cdef long long stamp
    cdef long long timestamp
    cdef bint is_count
    cdef bint used
    cdef object row
    cdef object headers
    cdef object message
    cdef object key

    def __init__(self, row, long long stamp, long long timestamp, headers, message, bint used, key):
        self.row = row
        self.stamp = stamp
        self.timestamp = timestamp
        self.headers = headers
        self.message = message
        self.used = used
        self.key = key

    cdef object value(self):
        return (self.number, self.newest) if self.is_count else self.row

    def __getitem__(self, int field):
        if field == VALUE:
            return self.value()
        if field == STAMP:
            return self.stamp
        if field == TIMESTAMP:
            return self.timestamp
        if field == HEADERS:
            return self.headers
        if field == MESSAGE:
            return self.message
        if field == USED:
            return self.used
        if field == KEY:
            return self.key
        raise IndexError(field)

    def __setitem__(self, int field, value):
        if field == VALUE:
            self.row = value
            self.is_count = False
        elif field == STAMP:
            self.stamp = value
        elif field == TIMESTAMP:
            self.timestamp = value
        elif field == HEADERS:
            self.headers = value
        elif field == MESSAGE:
            self.message = value
        elif field == USED:
            self.used = value
        else:
            raise IndexError(field)


cdef struct Stamped:
    long long stamp
    PyObject *cell


cdef int _by_stamp(const void *one, const void *other) noexcept nogil:
    cdef long long a = (<Stamped *>one).stamp
    cdef long long b = (<Stamped *>other).stamp
    return (a > b) - (a < b)


@cython.final
cdef class CellTable:
    """The cells of one cache. entries: cell by cache key; dirty: those that changed since the last flush."""

    cdef readonly dict entries
    cdef list dirty
    cdef long long last_stamp
    cdef object segments, deleting, rows
    NOT_CACHED = NOT_CACHED

    def __init__(self, dict entries, list dirty):
        self.entries = entries
        self.dirty = dirty

    def next_stamp(self):
        """Return the stamp of the next put."""
        self.last_stamp += 1
        return self.last_stamp

    def read(self, key):
        """Return the row of a cache key, None if there is none, NOT_CACHED if it has no cell."""
        cdef PyObject *found = PyDict_GetItemWithError(self.entries, key)
        if found is NULL:
            return NOT_CACHED
        cdef Cell cell = <Cell?>found
        cell.used = True
        return cell.value()

    def updates(self, load, hold, read, native):
        """Return what changes the cells; see CellUpdates."""
        return CellUpdates(self, load, hold, read, native)

    def windows(self, observed, size_ms, advance_ms, late_ms):
        """Return what finds the keys of windows' cells; see TimeWindows."""
        return TimeWindows(observed, size_ms, advance_ms, late_ms)

    def is_of_segments(self, segments, deleting, rows):
        """Have cells of keys that come after all that was written made without a load; CachingSegments' arguments."""
        self.segments, self.deleting, self.rows = segments, deleting, rows

    cdef Cell later(self, object key):
        """Return a new cell, None if its row may be below: what CachingSegments.load does, too."""
        cdef long long observed
        if self.segments is None or type(key) is not tuple or self.deleting or not self.rows.rests:
            return None
        observed = self.segments.observed_ms
        if observed < 0 or observed >= <long long>(<tuple>key)[1]:
            return None
        cdef Cell cell = Cell(None, 0, 0, None, None, False, key)
        self.entries[key] = cell
        return cell

    def take_dirty(self, most):
        """See NamedCache.take_dirty."""
        self.sort_dirty()
        cdef list dirty = self.dirty
        cdef list taken = dirty[:most]
        cdef list changes = []
        cdef Cell cell
        del dirty[:most]
        for cell in taken:
            row = cell.value()
            changes.append((cell.key, row, cell.timestamp, cell.headers, cell.message))
            cell.stamp = 0
            cell.message = None
            if row is None:
                del self.entries[cell.key]
        return changes

    def evict_clean(self, Py_ssize_t wanted):
        """See NamedCache.evict_clean."""
        cdef list victims, passed
        cdef PyObject *key
        cdef PyObject *found
        cdef Py_ssize_t position
        cdef Cell cell
        cdef Py_ssize_t clean
        for _ in range(2):
            victims, passed, position = [], [], 0
            clean = len(self.entries) - len(self.dirty)
            while len(victims) < wanted and len(victims) + len(passed) < clean and PyDict_Next(self.entries, &position, &key, &found):
                cell = <Cell?>found
                if cell.stamp:
                    continue
                if cell.used:
                    cell.used = False
                    passed.append(cell)
                else:
                    victims.append(<object>key)
            for victim in victims:
                del self.entries[victim]
            for cell in passed:
                del self.entries[cell.key]
                self.entries[cell.key] = cell
            wanted -= len(victims)
            if not wanted:
                break
        return wanted

    cdef int sort_dirty(self) except -1:
        cdef list dirty = self.dirty
        cdef Cell cell
        cdef Py_ssize_t i, size = len(dirty)
        cdef Stamped *ordered = <Stamped *>malloc((size + 1) * sizeof(Stamped))
        if ordered is NULL:
            raise MemoryError()
        try:
            for i in range(size):
                cell = dirty[i]
                ordered[i].cell = <PyObject *>cell
                ordered[i].stamp = cell.stamp
            qsort(ordered, size, sizeof(Stamped), _by_stamp)
            dirty[:] = [<object>ordered[i].cell for i in range(size)]
        finally:
            free(ordered)
        return 0


@cython.final
cdef class CellUpdates:
    """How the records of one operator change the cells of a table. Each update returns whether grown() is to be called.

    load(cache key), hold(value), native: as of Cells. read(held value): a value of the reader's own, None for the held
    value itself.
    """

    cdef CellTable table
    cdef object load
    cdef object hold
    cdef object read
    cdef object native
    cdef bint grew

    def __init__(self, CellTable table, load, hold, read, native):
        self.table = table
        self.load = load
        self.hold = hold
        self.read = read
        self.native = native

    cdef Cell find(self, object key):
        cdef PyObject *found = PyDict_GetItemWithError(self.table.entries, key)
        if found is not NULL:
            return <Cell?>found
        cdef Cell cell = self.table.later(key)
        if cell is None:
            cell = self.load(key)
        self.grew = True
        return cell

    cdef bint put(self, Cell cell, long long timestamp, object headers, object message) except -1:
        cdef CellTable table = self.table
        if not cell.stamp:
            table.dirty.append(cell)
        table.last_stamp += 1
        cell.stamp = table.last_stamp
        cell.timestamp = timestamp
        cell.headers = headers
        cell.message = message
        cell.used = True
        if self.grew:
            self.grew = False
            return True
        return False

    def count(self, cache_key, long long timestamp, headers, message):
        """Add one to a count."""
        cdef Cell cell = self.find(cache_key)
        if not cell.is_count:
            if cell.row is None:
                cell.number, cell.newest = 0, timestamp
            else:
                cell.number, cell.newest = cell.row
            cell.row = None
            cell.is_count = True
        cell.number += 1
        if timestamp > cell.newest:
            cell.newest = timestamp
        return self.put(cell, timestamp, headers, message)

    def aggregate(self, initializer, aggregator, cache_key, key, value, timestamp, headers, message):
        """Put aggregator(key, value, old), where old is initializer() for a new key."""
        cdef Cell cell = self.find(cache_key)
        row = cell.value()
        if row is None:
            old, newest = initializer(), timestamp
        else:
            old, newest = row
            old = self.own(old)
            if timestamp > newest:
                newest = timestamp
        row = None
        new = aggregator(key, value, old)
        old = None
        return self.put_new(cell, new, newest, timestamp, headers, message)

    def reduce(self, reducer, cache_key, value, timestamp, headers, message):
        """Put reducer(old, value), or the value itself for a new key."""
        cdef Cell cell = self.find(cache_key)
        row = cell.value()
        if row is None:
            new, newest = value, timestamp
        else:
            old, newest = row
            old = self.own(old)
            if timestamp > newest:
                newest = timestamp
            new = reducer(old, value)
        return self.put_new(cell, new, newest, timestamp, headers, message)

    def replace(self, cache_key, value, timestamp, headers, message):
        """Put the value, None to delete, whatever there was."""
        held = self.held(value)
        cdef PyObject *found = PyDict_GetItemWithError(self.table.entries, cache_key)
        cdef Cell cell
        if found is not NULL:
            return self.put_held(<Cell?>found, held, timestamp, timestamp, headers, message)
        cell = Cell(None, 0, 0, None, None, False, cache_key)
        self.table.entries[cache_key] = cell
        self.put_held(cell, held, timestamp, timestamp, headers, message)
        cell.used = False
        return True

    cdef object own(self, held):
        """Return what read() returns."""
        if self.native is dict and type(held) is dict:
            return (<dict>held).copy()
        return held if self.read is None else self.read(held)

    cdef bint put_new(self, Cell cell, new, newest, timestamp, headers, message) except -1:
        if self.native is dict and Py_REFCNT(new) == 1 and is_flat(new):
            held = new  # no other object has it: the function created it or was given it
        else:
            held = self.held(new)
        return self.put_held(cell, held, newest, timestamp, headers, message)

    cdef object held(self, new):
        """Return what hold() returns."""
        return new if new is None or self.is_held(new) else self.hold(new)

    cdef bint put_held(self, Cell cell, held, newest, timestamp, headers, message) except -1:
        cell.row = None if held is None else (held, newest)
        cell.is_count = False
        return self.put(cell, timestamp, headers, message)

    cdef bint is_held(self, new) except -1:
        """Whether hold() would return the value as it is."""
        cdef int overflow = 0
        if self.native is None or type(new) is not self.native or self.native is dict:
            return False
        if self.native is int:
            PyLong_AsLongLongAndOverflow(new, &overflow)
            return not overflow
        if self.native is str:
            return PyUnicode_IS_ASCII(new)
        return True


@cython.final
cdef class TimeWindows:
    """The windows of KStreamWindowAggregate.aggregate for a fused loop; arguments in ms.

    observed: a list of the highest timestamp seen; late_ms: a window has closed that starts so much before it.
    """

    cdef list observed
    cdef long long size_ms
    cdef long long advance_ms
    cdef long long late_ms
    cdef long long last_ms  # start of the last window of the timestamp that was requested before
    cdef long long first_ms  # start of the first one
    cdef tuple starts  # of all of them
    cdef object newest  # observed[0], when it was looked at last
    cdef long long newest_ms  # the same

    def __init__(self, list observed not None, long long size_ms, long long advance_ms, long long late_ms):
        self.observed = observed
        self.size_ms = size_ms
        self.advance_ms = advance_ms
        self.late_ms = late_ms
        self.last_ms = -advance_ms

    def cache_keys(self, key, timestamp):
        """Return (key, start), the key as it is, of each window that holds the timestamp, None for one that has closed.

        What was observed advances.
        """
        cdef long long at = timestamp
        cdef Py_ssize_t i
        if self.observed[0] is not self.newest:
            self.newest = self.observed[0]
            self.newest_ms = self.newest
        if at > self.newest_ms:
            self.observed[0] = self.newest = timestamp
            self.newest_ms = at
        # Size and advance may not fit: the first window of a timestamp can change before its last one does.
        cdef long long last = at - at % self.advance_ms
        cdef long long first = max(0, at - self.size_ms + self.advance_ms)
        first -= first % self.advance_ms
        if last != self.last_ms or first != self.first_ms:
            self.last_ms, self.first_ms = last, first
            self.starts = tuple(range(first, last + 1, self.advance_ms))
        cdef long long closed = self.newest_ms - self.late_ms
        if first > closed and len(self.starts) == 1:
            return ((key, self.starts[0]),)
        return [(key, start) if start > closed else None for start in self.starts]
