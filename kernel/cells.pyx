# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""The cells of a record cache, and their updates per record.

A Cell has the interface of the list that it replaces (topology.store_interfaces.Cell), but stores a row's timestamp, and a
count, as numbers, not as a tuple of two objects.
"""

from bisect import bisect_left

cimport cython
from cpython.dict cimport PyDict_GetItemWithError, PyDict_Next
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t
from libc.stdlib cimport free, malloc, qsort, realloc
from libc.string cimport memcpy

from penstock.kernel.aggregates cimport aggregated
from penstock.kernel.conversions cimport converted
from penstock.kernel.flat_dict cimport is_flat
from penstock.kernel.rows cimport ChangedRows, StoredEntries, TimedRows, changed_row, data_of

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object)
    Py_ssize_t Py_REFCNT(object)

cdef enum:
    VALUE, CHANGED, TIMESTAMP, HEADERS, MESSAGE, USED, KEY

#: What read() returns for a key that is not cached, and for a row that does not exist.
NOT_CACHED = object()
NO_ROW = object()
cdef object new_tuple = tuple.__new__


@cython.final
@cython.no_gc  # a row never leads back to its cell
@cython.freelist(1024)
cdef class Cell:
    """An entry of a record cache: [value, whether it has changed, timestamp, headers, message, used, key]."""

    def __init__(self, row, long long timestamp, headers, message, bint used, key):
        self.row = row
        self.timestamp = timestamp
        self.headers = headers
        self.message = message
        self.used = used
        self.key = key

    cdef object value(self):
        if self.form == WHOLE:
            return self.row
        return (self.number if self.form == COUNTED else self.row), self.newest

    cdef object held(self, int64_t *time):
        """Return the held value of a row with a timestamp, and set time to that; see has_row."""
        if self.form == WHOLE:
            time[0] = (<tuple?>self.row)[1]
            return (<tuple>self.row)[0]
        time[0] = self.newest
        return self.number if self.form == COUNTED else self.row

    def __getitem__(self, int field):
        if field == VALUE:
            return self.value()
        if field == CHANGED:
            return self.place > 0
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
            self.form = WHOLE
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


cdef Cell new_cell(key, row):
    """Return a cell that has not changed."""
    cdef Cell cell = Cell.__new__(Cell)
    cell.key = key
    cell.row = row
    return cell


cdef int _by_stamp(const void *one, const void *other) noexcept nogil:
    cdef long long a = (<stamped *>one).stamp
    cdef long long b = (<stamped *>other).stamp
    return (a > b) - (a < b)


cdef bint is_ascending(const stamped *cells, Py_ssize_t size) noexcept:
    cdef Py_ssize_t i
    for i in range(1, size):
        if cells[i].stamp < cells[i - 1].stamp:
            return False
    return True


cdef Py_ssize_t first_from(list keys, int64_t time) except -1:
    """Return the index of the first cache key at or after a time in a sorted list."""
    cdef Py_ssize_t low = 0, high = len(keys), middle
    while low < high:
        middle = (low + high) // 2
        if <int64_t>(<tuple>keys[middle])[1] < time:
            low = middle + 1
        else:
            high = middle
    return low


cdef inline int compared(int64_t time, int64_t second, int64_t other_time, int64_t other_second) noexcept:
    if time != other_time:
        return -1 if time < other_time else 1
    return -1 if second < other_second else second > other_second


cdef void lowest_first(stamped *cells, Py_ssize_t size, Py_ssize_t most) noexcept:
    """Move the cells with the lowest stamps to the front, `most` of them, in any order (quickselect; stamps differ)."""
    cdef Py_ssize_t low = 0, high = size - 1, left, right
    cdef long long middle
    while low < high:
        left, right, middle = low, high, cells[(low + high) // 2].stamp
        while left <= right:
            while cells[left].stamp < middle:
                left += 1
            while cells[right].stamp > middle:
                right -= 1
            if left <= right:
                cells[left], cells[right] = cells[right], cells[left]
                left += 1
                right -= 1
        if most <= right:
            high = right
        elif most >= left:
            low = left
        else:
            return


@cython.final
cdef class KeyIndex:
    """The keys of a cache of window or session rows by record key, in order; None until a fetch needs them.

    Cache keys are tuples of the record key and the row's times, so that the keys of one record key sort by time. added:
    how many since it was built.
    """

    cdef list keys_of(self, record_key, dict entries):
        """Return the cache keys of a record key, by time; some may have been evicted. entries: those of the cache."""
        cdef dict by_key
        if self.by_key is None or self.added > 1000 + len(entries):  # half of the keys may be evicted
            by_key = {}
            for key in entries:
                by_key.setdefault((<tuple?>key)[0], []).append(key)
            for keys in by_key.values():
                (<list>keys).sort()
            self.by_key, self.added = by_key, 0
        return self.by_key.get(record_key) or []

    cdef int add(self, key) except -1:
        """Add a new cache key, if the index is built."""
        return 0 if self.by_key is None else self.insert(key)

    cdef int insert(self, tuple key) except -1:
        cdef PyObject *found = PyDict_GetItemWithError(self.by_key, key[0])
        cdef list keys
        cdef Py_ssize_t at
        self.added += 1
        if found is NULL:
            self.by_key[key[0]] = [key]
            return 0
        keys = <list>found
        if not keys or <tuple>keys[len(keys) - 1] < key:
            keys.append(key)
            return 0
        at = bisect_left(keys, key)
        if keys[at] != key:
            keys.insert(at, key)
        return 0


@cython.final
cdef class CellTable:
    """The cells of one cache. entries: cell by cache key. dirty_count: how many have changed since the last flush.

    check_at: number of cells at which a new one may exceed the cache's limit.
    """

    NOT_CACHED = NOT_CACHED

    def __cinit__(self):
        self.entries = {}
        self.check_at = 1
        self.index = KeyIndex()

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.dirty_count):
            Py_DECREF(<object>self.puts[i].cell)
        free(self.puts)

    def dirty(self):
        """Return the cells that have changed since the last flush, in any order."""
        cdef Py_ssize_t i
        return [<object>self.puts[i].cell for i in range(self.dirty_count)]

    cdef object read(self, key, int64_t *time):
        """Return the held value of a row with a timestamp, and set time; NO_ROW if there is none, NOT_CACHED without a cell."""
        cdef PyObject *found = PyDict_GetItemWithError(self.entries, key)
        if found is NULL:
            return NOT_CACHED
        cdef Cell cell = <Cell?>found
        cell.used = True
        return cell.held(time) if has_row(cell) else NO_ROW

    cdef object read_sent(self, key, int64_t *time):
        """As read, but the row as of the last flush; NOT_CACHED if the caller must find it below the cache."""
        cdef PyObject *found = PyDict_GetItemWithError(self.entries, key)
        if found is not NULL and not (<Cell?>found).place:
            return (<Cell>found).held(time) if has_row(<Cell>found) else NO_ROW
        return self.stored_row(key, time)

    cdef object read_below(self, key, int64_t *time):
        """As read, but a row without a cell is read below the cache, and gets none."""
        found = self.read(key, time)
        return self.stored_row(key, time) if found is NOT_CACHED else found

    cdef object stored_row(self, key, int64_t *time):
        if self.stored is None or self.deleting:
            return NOT_CACHED
        row = self.stored.row(key)
        return NO_ROW if row is None else self.stored.held_value(<bytes?>row, time)

    def updates(self, load, hold, read, native):
        """Return a CellUpdates."""
        return CellUpdates(self, load, hold, read, native)

    def loads(self, StoredEntries stored not None, deleting, read, row_type):
        """Create cells from stored rows, without calling load, while deleting is empty.

        read(entry): a copy of an entry for the reader. row_type: the type to convert entries to if they need no other
        copy.
        """
        self.stored, self.deleting = stored, deleting
        self.read_held, self.row_type = read, row_type

    def putter(self, task, grown):
        """Return CachingStore._putter's function."""
        def put(key, held):
            if self.put(key, held, task.timestamp, task.headers, task.message):
                grown()

        return put

    cdef bint put(self, key, held, timestamp, headers, message) except -1:
        """Put an entry; return whether the caller must make room."""
        cdef PyObject *found = PyDict_GetItemWithError(self.entries, key)
        cdef Cell cell
        if found is NULL:
            cell = new_cell(key, held)
            self.entries[key] = cell
            self.index.add(key)
        else:
            cell = <Cell?>found
            cell.row = held
            cell.form = WHOLE
            cell.used = True
        self.changed(cell, timestamp, headers, message)
        return found is NULL and len(self.entries) >= self.check_at

    cdef int changed(self, Cell cell, int64_t timestamp, headers, message) except -1:
        if not cell.place:
            self.begin_changes(cell)
        self.last_stamp += 1
        self.puts[cell.place - 1].stamp = self.last_stamp
        cell.timestamp = timestamp
        cell.headers = headers
        cell.message = message
        return 0

    cdef int begin_changes(self, Cell cell) except -1:
        """Let a cell be one of those that have changed."""
        cdef stamped *grown
        if self.dirty_count == self.dirty_room:
            grown = <stamped *>realloc(self.puts, (2 * self.dirty_room + 16) * sizeof(stamped))
            if grown is NULL:
                raise MemoryError()
            self.puts, self.dirty_room = grown, 2 * self.dirty_room + 16
        Py_INCREF(cell)
        self.puts[self.dirty_count].cell = <PyObject *>cell
        self.dirty_count += 1
        cell.place = self.dirty_count
        return 0

    cdef void end_changes(self, Cell cell) noexcept:
        """Let a cell no longer be one of those that have changed; the last one moves there."""
        cdef stamped *last = self.puts + self.dirty_count - 1
        (<Cell>last.cell).place = cell.place
        self.puts[cell.place - 1] = last[0]
        self.dirty_count -= 1
        cell.place = 0
        Py_DECREF(cell)

    def add_clean(self, key, held):
        """Add an entry of the store below, and return its cell; as NamedCache.add_clean."""
        cdef Cell cell = new_cell(key, held)
        self.entries[key] = cell
        self.index.add(key)
        return cell

    def clear(self):
        """Drop all entries, including dirty ones."""
        while self.dirty_count:
            self.end_changes(<Cell>self.puts[self.dirty_count - 1].cell)
        self.entries.clear()
        self.index = KeyIndex()
        self.check_at = 1

    def cached(self, bytes record_key not None, int64_t time_from, int64_t time_to):
        """Return the cached entries of a record key from a time up to another one, by cache key."""
        cdef list keys = self.index.keys_of(record_key, self.entries)
        cdef dict found = {}
        cdef PyObject *cell
        cdef Py_ssize_t i
        for i in range(first_from(keys, time_from), len(keys)):
            key = <tuple>keys[i]
            if <int64_t>key[1] > time_to:
                break
            cell = PyDict_GetItemWithError(self.entries, key)
            if cell is not NULL:  # it was not evicted
                found[key] = (<Cell?>cell).value()
        return found

    def sessions(self, windowed, key, bytes record_key not None, int64_t earliest_end, int64_t latest_start):
        """Return the result of CachingSessionStore.find_sessions as a list, None if some rows may be on disk."""
        cdef list found = self.key_values(record_key, earliest_end, INT64_MAX)
        if not found:
            return found
        return [
            (new_tuple(windowed, (key, start, end)), value) for end, start, value in found if start <= latest_start
        ]

    cpdef list key_values(self, bytes record_key, int64_t time_from, int64_t time_to):
        """Return the result of CachingSegments._key_values, None if some rows may be on disk or have expired."""
        cdef StoredEntries stored = self.stored
        if stored is None or self.deleting or time_from < stored.segments.visible_from:
            return None
        if not stored.latest.knows(time_from):
            return None
        cdef list keys = self.index.keys_of(record_key, self.entries), found = []
        cdef PyObject *cell
        cdef tuple key
        cdef Py_ssize_t i, count = len(keys)
        cdef int j = 0, rows_count = 0
        cdef int64_t time = 0, second = 0
        cdef int order
        cdef TimedRows rows = stored.latest.rows_of(record_key)
        if rows is not None:
            j, rows_count = rows.place(time_from, INT64_MIN), rows.count
        i = first_from(keys, time_from)
        while True:
            if i < count:
                key = keys[i]
                time = key[1]
                second = key[2] if len(key) > 2 else 0
                if time > time_to:
                    i = count
            if i >= count and (j >= rows_count or rows.rows[j].time > time_to):
                return found
            order = 1 if i >= count else -1 if j >= rows_count else compared(
                time, second, rows.rows[j].time, rows.rows[j].second
            )
            if order <= 0:
                i += 1
                cell = PyDict_GetItemWithError(self.entries, key)
                if cell is NULL:
                    continue  # it was evicted: the stored row is current
                j += order == 0
                held = (<Cell?>cell).value()
            else:
                time, second = rows.rows[j].time, rows.rows[j].second
                held = stored.held(data_of(rows.rows + j))
                j += 1
            if held is None:
                continue
            if self.row_type is not None:
                held = new_tuple(self.row_type, held)
            elif self.read_held is not None:
                held = self.read_held(held)
            found.append((time, held) if stored.second_size < <int>sizeof(int64_t) else (time, second, held))

    cdef Cell load(self, object key):
        """Return a new cell for a key as CachingStore's load does, None if the caller must call load."""
        cdef Cell cell
        cdef StoredEntries stored = self.stored
        if stored is None or self.deleting:
            return None
        cell = new_cell(key, None)
        if stored.segments is None or not self.is_later(key):
            row = stored.row(key)
            if row is not None:
                if stored.read_long(row, &cell.number, &cell.newest):
                    cell.form = COUNTED
                elif stored.timestamped:
                    cell.row = stored.held_value(row, &cell.newest)
                    cell.form = TIMED
                else:
                    cell.row = stored.held(row)
        self.entries[key] = cell
        self.index.add(key)
        return cell

    cdef bint is_later(self, object key) except -1:
        """Return whether a key of a cache of segments is later than all that was written, so that it has no row."""
        cdef int64_t observed = self.stored.segments.observed_ms
        return 0 <= observed < <int64_t>(<tuple?>key)[1]

    def take_dirty(self):
        """Return the changed entries as ChangedRows, in the order of the last puts, and mark them as clean."""
        return self.taken(self.dirty_count)

    cdef ChangedRows taken(self, Py_ssize_t most):
        """Return those of the oldest changes, so many, as take_dirty does."""
        cdef ChangedRows changes = ChangedRows.__new__(ChangedRows)
        cdef Py_ssize_t i, size = self.dirty_count
        cdef stamped *ordered = <stamped *>malloc((size + 1) * sizeof(stamped))
        cdef changed_row change
        cdef Cell cell
        if ordered is NULL:
            raise MemoryError()
        try:
            memcpy(ordered, self.puts, size * sizeof(stamped))
            if most < size:
                lowest_first(ordered, size, most)
            if not is_ascending(ordered, most):
                qsort(ordered, most, sizeof(stamped), _by_stamp)
            changes.make_room(most)
            for i in range(most):
                cell = <Cell>ordered[i].cell
                change.key, change.cell = <PyObject *>cell.key, ordered[i].cell
                change.held = NULL if cell.form == COUNTED else <PyObject *>cell.row
                change.is_timed = cell.form == TIMED
                change.number, change.newest, change.timestamp = cell.number, cell.newest, cell.timestamp
                change.headers, change.message = <PyObject *>cell.headers, <PyObject *>cell.message
                changes.keep(&change)
                self.end_changes(cell)
                cell.message = None
                if change.held is <PyObject *>None:
                    del self.entries[cell.key]
        finally:
            free(ordered)
        return changes

    def evict(self, Py_ssize_t wanted, flush):
        """Drop up to wanted entries as NamedCache.evict does."""
        cdef ChangedRows changes
        cdef Py_ssize_t i
        wanted = self.evict_clean(wanted)
        while wanted and self.dirty_count:
            changes = self.taken(min(wanted, self.dirty_count))
            for i in range(changes.count):
                (<Cell>changes.rows[i].cell).used = False
            flush(changes)
            for i in range(changes.count):
                wanted -= self.drop(<Cell>changes.rows[i].cell)
        if wanted > 0:
            self.evict_clean(wanted)

    cdef int drop(self, Cell cell) except -1:
        """Drop a cell whose change a flush has written; return how many entries are gone: not if it is used again."""
        cdef PyObject *found
        if cell.used or cell.place:
            return 0
        found = PyDict_GetItemWithError(self.entries, cell.key)
        if found is <PyObject *>cell:
            del self.entries[cell.key]
        return 1

    def evict_clean(self, Py_ssize_t wanted):
        """Drop up to wanted clean entries, and return how many are left to drop, as NamedCache.evict_clean does."""
        cdef list victims, passed
        cdef PyObject *key
        cdef PyObject *found
        cdef Py_ssize_t position
        cdef Cell cell
        cdef Py_ssize_t clean
        for _ in range(2):
            victims, passed, position = [], [], 0
            clean = len(self.entries) - self.dirty_count
            while len(victims) < wanted and len(victims) + len(passed) < clean and PyDict_Next(self.entries, &position, &key, &found):
                cell = <Cell?>found
                if cell.place:
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


@cython.final
cdef class CellUpdates:
    """The updates of a table's cells by the records of one operator. Each returns whether to call grown().

    load(cache key), hold(value), native: see Cells. read(held value): a copy for the reader; None if it needs none.
    """

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
        cdef Cell cell = self.table.load(key)
        if cell is None:
            cell = self.load(key)
        self.grew = True
        return cell

    cdef bint put(self, Cell cell, long long timestamp, object headers, object message) except -1:
        cdef CellTable table = self.table
        table.changed(cell, timestamp, headers, message)
        cell.used = True
        if self.grew:
            self.grew = False
            return len(table.entries) >= table.check_at
        return False

    cpdef bint count(self, cache_key, long long timestamp, headers, message) except -1:
        """Add one to a count."""
        cdef Cell cell = self.find(cache_key)
        if cell.form != COUNTED:
            if has_row(cell):
                cell.number = cell.held(&cell.newest)
            else:
                cell.number, cell.newest = 0, timestamp
            cell.row = None
            cell.form = COUNTED
        cell.number += 1
        if timestamp > cell.newest:
            cell.newest = timestamp
        return self.put(cell, timestamp, headers, message)

    cpdef bint aggregate(
        self, initializer, aggregator, cache_key, key, value, int64_t timestamp, headers, message
    ) except -1:
        """Put aggregator(key, value, old), where old is initializer() for a new key."""
        cdef Cell cell = self.find(cache_key)
        cdef int64_t newest = timestamp
        if has_row(cell):
            old = self.own(cell.held(&newest))
            newest = max(newest, timestamp)
        else:
            old = initializer()
        new = aggregated(aggregator, key, value, old)
        old = None
        return self.put_new(cell, new, newest, timestamp, headers, message)

    cpdef bint reduce(self, reducer, cache_key, value, int64_t timestamp, headers, message) except -1:
        """Put reducer(old, value), or value for a new key."""
        cdef Cell cell = self.find(cache_key)
        cdef int64_t newest = timestamp
        new = value
        if has_row(cell):
            new = reducer(self.own(cell.held(&newest)), value)
            newest = max(newest, timestamp)
        return self.put_new(cell, new, newest, timestamp, headers, message)

    cpdef bint replace(self, cache_key, value, int64_t timestamp, headers, message) except -1:
        """Put the value without reading the old one; None deletes the row."""
        held = self.held(value)
        cdef PyObject *found = PyDict_GetItemWithError(self.table.entries, cache_key)
        cdef Cell cell
        if found is not NULL:
            return self.put_held(<Cell?>found, held, timestamp, timestamp, headers, message)
        cell = new_cell(cache_key, None)
        self.table.entries[cache_key] = cell
        self.grew = True
        cdef bint grown = self.put_held(cell, held, timestamp, timestamp, headers, message)
        cell.used = False
        return grown

    cdef object own(self, held):
        """As read()."""
        if self.native is dict and type(held) is dict:
            return (<dict>held).copy()
        return held if self.read is None else converted(self.read, held)

    cdef bint put_new(self, Cell cell, new, int64_t newest, int64_t timestamp, headers, message) except -1:
        if self.native is dict and Py_REFCNT(new) == 1 and is_flat(new):
            held = new  # nothing else refers to it
        else:
            held = self.held(new)
        return self.put_held(cell, held, newest, timestamp, headers, message)

    cdef object held(self, new):
        """As hold()."""
        return new if new is None or self.is_held(new) else self.hold(new)

    cdef bint put_held(self, Cell cell, held, int64_t newest, int64_t timestamp, headers, message) except -1:
        cell.row, cell.newest = held, newest
        cell.form = WHOLE if held is None else TIMED
        return self.put(cell, timestamp, headers, message)

    cdef bint is_held(self, new) except -1:
        """Return whether hold() would return the value unchanged."""
        cdef int overflow = 0
        if self.native is None or type(new) is not self.native or self.native is dict:
            return False
        if self.native is int:
            PyLong_AsLongLongAndOverflow(new, &overflow)
            return not overflow
        if self.native is str:
            return PyUnicode_IS_ASCII(new)
        return True
