# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""The cells of a record cache, and their updates per record."""

cimport cython
from cpython.dict cimport PyDict_GetItemWithError
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove

from penstock.kernel.aggregates cimport aggregated
from penstock.kernel.conversions cimport converted
from penstock.kernel.flat_dict cimport is_flat
from penstock.kernel.rows cimport (
    ChangedRows,
    KeyTable,
    StoredEntries,
    TimedRows,
    cache_key_of,
    changed_row,
    data_of,
    record_key_of,
    row_time,
    time_place,
)

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object)
    Py_ssize_t Py_REFCNT(object)

cdef enum:  # the first links of a table: one before the first cell and after the last one of each of its queues
    CLEAN
    CHANGED
    FREE  # the first link for a cell

#: What read() returns for a key that is not cached, and for a row that does not exist.
NOT_CACHED = object()
NO_ROW = object()
cdef object new_tuple = tuple.__new__


@cython.final
@cython.no_gc  # a row never leads back to its cell
@cython.freelist(1024)
cdef class Cell:
    """An entry of a record cache, which stores a row's timestamp, and a count, as numbers.

    key: the record key. of: the cells of that key, None in a cache whose keys have no times. time, second: those of the
    cache key. timestamp, headers, message: the record context of the last put. used: whether the entry was read or
    changed since an eviction last skipped it.
    """

    @property
    def value(self):
        """The row: (held value, timestamp), or for stores without timestamps the held value; None for nothing."""
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


cdef Cell new_cell(key, int64_t time, int64_t second, row):
    """Return a cell that has not changed."""
    cdef Cell cell = Cell.__new__(Cell)
    cell.key, cell.time, cell.second = key, time, second
    cell.row = row
    return cell


@cython.final
@cython.freelist(1024)
@cython.no_gc  # it owns its key only
cdef class KeyCells:
    """The cells of one record key, in the order of their times, which own them; the table's links own the cells."""

    def __cinit__(self):
        self.cells, self.room = self.few, FEW

    def __dealloc__(self):
        if self.cells is not self.few:
            free(self.cells)

    cdef Py_ssize_t place(self, int64_t time, int64_t second) noexcept:
        """Return the index at which a cell is or would be inserted."""
        return time_place(self.cells, sizeof(timed_cell), self.count, time, second)

    cdef PyObject *get(self, int64_t time, int64_t second) noexcept:
        """Return a cell, NULL if there is none."""
        cdef Py_ssize_t at = self.place(time, second)
        if at < self.count and self.cells[at].at.time == time and self.cells[at].at.second == second:
            return self.cells[at].cell
        return NULL

    cdef int insert(self, Cell cell) except -1:
        cdef Py_ssize_t at = self.place(cell.time, cell.second)
        cdef timed_cell *cells
        if self.count == self.room:
            self.grow()
        cells = self.cells
        memmove(cells + at + 1, cells + at, (self.count - at) * sizeof(timed_cell))
        cells[at].at.time, cells[at].at.second, cells[at].cell = cell.time, cell.second, <PyObject *>cell
        self.count += 1
        return 0

    cdef int grow(self) except -1:
        cdef bint had_few = self.cells is self.few
        cdef timed_cell *grown = <timed_cell *>realloc(
            NULL if had_few else self.cells, 2 * self.room * sizeof(timed_cell)
        )
        if grown is NULL:
            raise MemoryError()
        if had_few:
            memcpy(grown, self.few, FEW * sizeof(timed_cell))
        self.cells, self.room = grown, 2 * self.room
        return 0

    cdef void remove(self, Cell cell) noexcept:
        cdef Py_ssize_t at = self.place(cell.time, cell.second)
        self.count -= 1
        memmove(self.cells + at, self.cells + at + 1, (self.count - at) * sizeof(timed_cell))


cdef inline int compared(int64_t time, int64_t second, int64_t other_time, int64_t other_second) noexcept:
    if time != other_time:
        return -1 if time < other_time else 1
    return -1 if second < other_second else second > other_second


@cython.final
cdef class CellTable:
    """The cells of one cache. times: how many times a cache key has besides the record key; see CacheKeys.

    by_key: the cells of keys without times; by_record_key: the KeyCells of keys with times. Each cell is in one of two queues: of those that have not changed since
    the last flush, and of the changed ones, by the last put. dirty_count: how many these are. check_at: number of cells
    at which a new one may exceed the cache's limit.
    """

    NOT_CACHED = NOT_CACHED

    def __cinit__(self):
        self.by_key = {}
        self.by_record_key = KeyTable()
        self.check_at = 1
        self.make_room()
        self.begin()

    def __init__(self, int times=0):
        self.times = times

    cdef void begin(self) noexcept:
        """Begin without cells."""
        cdef int queue
        for queue in range(FREE):
            self.links[queue].before = self.links[queue].after = queue
        self.links_used, self.free_link, self.count, self.dirty_count = FREE, 0, 0, 0

    cdef int make_room(self) except -1:
        cdef int room = 2 * self.room + 16
        cdef link *links = <link *>realloc(self.links, room * sizeof(link))
        if links is NULL:
            raise MemoryError()
        self.links, self.room = links, room
        return 0

    def __dealloc__(self):
        cdef int i
        for i in range(FREE, self.links_used):
            if self.links[i].cell is not NULL:
                Py_DECREF(<object>self.links[i].cell)
        free(self.links)

    def __len__(self):
        return self.count

    cdef void append(self, int place, int queue) noexcept:
        """Let a link be the last one of a queue."""
        cdef link *links = self.links
        links[place].before, links[place].after = links[queue].before, queue
        links[links[queue].before].after = place
        links[queue].before = place

    cdef void unlink(self, int place) noexcept:
        cdef link *links = self.links
        links[links[place].before].after = links[place].after
        links[links[place].after].before = links[place].before

    cdef PyObject *find(self, key, int64_t time, int64_t second) except? NULL:
        """Return a cell, NULL if there is none."""
        cdef KeyCells cells
        if not self.times:
            return PyDict_GetItemWithError(self.by_key, key)
        cells = <KeyCells>self.by_record_key.get(key)
        return NULL if cells is None else cells.get(time, second)

    def get(self, cache_key):
        """Return the cell of a cache key, None if there is none."""
        cdef int64_t time, second
        key = record_key_of(self.times, cache_key, &time, &second)
        cdef PyObject *found = self.find(key, time, second)
        return None if found is NULL else <Cell>found

    cdef list rows_of(self, int queue, bint changed):
        cdef list found = []
        cdef int place = self.links[queue].after
        cdef Cell cell
        while place != queue:
            cell = <Cell>self.links[place].cell
            if changed or has_row(cell):
                found.append((cache_key_of(self.times, cell.key, cell.time, cell.second), cell.value))
            place = self.links[place].after
        return found

    def changed(self):
        """Return (cache key, value) of the cells that have changed since the last flush, in the order of the last puts."""
        return self.rows_of(CHANGED, True)

    def rows(self):
        """Return (cache key, value) of all cells but those that only say that there is no row."""
        return self.rows_of(CLEAN, False) + self.changed()

    def sample(self, int most):
        """Return (cache key, value) of some cells, the ones that were changed last if there are such."""
        cdef int queue = CHANGED if self.dirty_count else CLEAN
        cdef int place = self.links[queue].before
        cdef list found = []
        cdef Cell cell
        while place != queue and len(found) < most:
            cell = <Cell>self.links[place].cell
            found.append((cache_key_of(self.times, cell.key, cell.time, cell.second), cell.value))
            place = self.links[place].before
        return found

    cdef int add(self, Cell cell) except -1:
        """Add a cell that is not there yet, as one that has not changed."""
        cdef int place = self.free_link
        if self.times:
            self.add_to_key(cell)
        else:
            self.by_key[cell.key] = cell
        if place:
            self.free_link = self.links[place].after
        else:
            if self.links_used == self.room:
                self.make_room()
            place = self.links_used
            self.links_used += 1
        Py_INCREF(cell)
        self.links[place].cell = <PyObject *>cell
        cell.place, cell.is_changed = place, False
        self.append(place, CLEAN)
        self.count += 1
        return 0

    cdef int add_to_key(self, Cell cell) except -1:
        cdef KeyCells cells = <KeyCells>self.by_record_key.get(cell.key)
        if cells is None:
            cells = KeyCells.__new__(KeyCells)
            cells.key = cell.key
            self.by_record_key.set(cell.key, cells)
        else:
            cell.key = cells.key
        return cells.insert(cell)

    cdef int replace(self, Cell cell) except -1:
        """Add a cell in place of the one of its key, if there is such."""
        cdef PyObject *found = self.find(cell.key, cell.time, cell.second)
        if found is not NULL:
            self.remove(<Cell>found)
        return self.add(cell)

    cdef int remove(self, Cell cell) except -1:
        """Remove a cell that is there."""
        cdef int place = cell.place
        cdef KeyCells cells
        if self.times:
            cells = <KeyCells>self.by_record_key.get(cell.key)
            cells.remove(cell)
            if not cells.count:
                self.by_record_key.remove(cell.key)
        else:
            del self.by_key[cell.key]
        self.unlink(place)
        self.links[place].cell = NULL
        self.links[place].after, self.free_link = self.free_link, place
        self.count -= 1
        self.dirty_count -= cell.is_changed
        cell.place, cell.is_changed = 0, False
        Py_DECREF(cell)
        return 0

    cdef int changed_by(self, Cell cell, int64_t timestamp, headers, message) except -1:
        """Let a cell be the one that was changed last."""
        if not cell.place:  # it was evicted while its new row was computed
            self.replace(cell)
        if not cell.is_changed:
            cell.is_changed = True
            self.dirty_count += 1
        self.unlink(cell.place)
        self.append(cell.place, CHANGED)
        cell.timestamp = timestamp
        cell.headers = headers
        cell.message = message
        return 0

    cdef object read(self, key, int64_t *time):
        """Return the held value of a row with a timestamp, and set time; NO_ROW if there is none, NOT_CACHED without a cell."""
        cdef PyObject *found = PyDict_GetItemWithError(self.by_key, key)
        if found is NULL:
            return NOT_CACHED
        cdef Cell cell = <Cell?>found
        cell.used = True
        return cell.held(time) if has_row(cell) else NO_ROW

    cdef object read_sent(self, key, int64_t *time):
        """As read, but the row as of the last flush; NOT_CACHED if the caller must find it below the cache."""
        cdef PyObject *found = PyDict_GetItemWithError(self.by_key, key)
        if found is not NULL and not (<Cell?>found).is_changed:
            return (<Cell>found).held(time) if has_row(<Cell>found) else NO_ROW
        return self.stored_row(key, time)

    cdef object read_below(self, key, int64_t *time):
        """As read, but a row without a cell is read below the cache, and gets none."""
        found = self.read(key, time)
        return self.stored_row(key, time) if found is NOT_CACHED else found

    cdef object stored_row(self, key, int64_t *time):
        if self.stored is None or self.deleting:
            return NOT_CACHED
        row = self.stored.row_at(key, 0, 0)
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
            cdef int64_t time, second
            record_key = record_key_of(self.times, key, &time, &second)
            if self.put(record_key, time, second, held, task.timestamp, task.headers, task.message):
                grown()

        return put

    cdef bint put(self, key, int64_t time, int64_t second, held, int64_t timestamp, headers, message) except -1:
        """Put an entry; return whether the caller must make room."""
        cdef PyObject *found = self.find(key, time, second)
        cdef Cell cell
        if found is NULL:
            cell = new_cell(key, time, second, held)
            self.add(cell)
        else:
            cell = <Cell>found
            cell.row = held
            cell.form = WHOLE
            cell.used = True
        self.changed_by(cell, timestamp, headers, message)
        return found is NULL and self.count >= self.check_at

    def add_clean(self, cache_key, held):
        """Add an entry of the store below, and return its cell; as NamedCache.add_clean."""
        cdef int64_t time, second
        key = record_key_of(self.times, cache_key, &time, &second)
        cdef Cell cell = new_cell(key, time, second, held)
        self.replace(cell)
        return cell

    def clear(self):
        """Drop all entries, including dirty ones."""
        cdef list dropped = []
        cdef int i
        for i in range(FREE, self.links_used):
            if self.links[i].cell is not NULL:
                cell = <Cell>self.links[i].cell
                (<Cell>cell).place, (<Cell>cell).is_changed = 0, False
                dropped.append(cell)
                Py_DECREF(cell)
        self.begin()
        self.by_key.clear()
        self.by_record_key.clear()
        self.check_at = 1

    def cached(self, bytes record_key not None, int64_t time_from, int64_t time_to):
        """Return the cached entries of a record key from a time up to another one, by cache key."""
        cdef KeyCells cells = <KeyCells>self.by_record_key.get(record_key)
        cdef dict found = {}
        cdef timed_cell *each
        cdef Py_ssize_t i
        if cells is not None:
            for i in range(cells.place(time_from, INT64_MIN), cells.count):
                each = cells.cells + i
                if each.at.time > time_to:
                    break
                found[cache_key_of(self.times, record_key, each.at.time, each.at.second)] = (<Cell>each.cell).value
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
        cdef KeyCells cells = <KeyCells>self.by_record_key.get(record_key)
        cdef TimedRows rows = <TimedRows>stored.latest.by_key.get(record_key)
        cdef Py_ssize_t i = 0, j = 0, cells_count = 0, rows_count = 0
        cdef row_time *cell_at = NULL
        cdef row_time *row_at = NULL
        cdef list found = []
        cdef int order
        if cells is not None:
            i, cells_count = cells.place(time_from, INT64_MIN), cells.count
        if rows is not None:
            j, rows_count = rows.place(time_from, INT64_MIN), rows.count
        while True:
            cell_at = NULL if i == cells_count or cells.cells[i].at.time > time_to else &cells.cells[i].at
            row_at = NULL if j == rows_count or rows.rows[j].at.time > time_to else &rows.rows[j].at
            if cell_at is NULL and row_at is NULL:
                return found
            order = 1 if cell_at is NULL else -1 if row_at is NULL else compared(
                cell_at.time, cell_at.second, row_at.time, row_at.second
            )
            if order <= 0:
                time, second, held = cell_at.time, cell_at.second, (<Cell>cells.cells[i].cell).value
                i += 1
                j += order == 0
            else:
                time, second, held = row_at.time, row_at.second, stored.held(data_of(rows.rows + j))
                j += 1
            if held is None:
                continue
            if self.row_type is not None:
                held = new_tuple(self.row_type, held)
            elif self.read_held is not None:
                held = self.read_held(held)
            found.append((time, held) if self.times == 1 else (time, second, held))

    cdef Cell load(self, key, int64_t time, int64_t second):
        """Return a new cell for a key as CachingStore's load does, None if the caller must call load."""
        cdef Cell cell
        cdef StoredEntries stored = self.stored
        if stored is None or self.deleting:
            return None
        cell = new_cell(key, time, second, None)
        if not (self.times and self.is_later(time)):
            row = stored.row_at(key, time, second)
            if row is not None:
                if stored.read_long(row, &cell.number, &cell.newest):
                    cell.form = COUNTED
                elif stored.timestamped:
                    cell.row = stored.held_value(row, &cell.newest)
                    cell.form = TIMED
                else:
                    cell.row = stored.held(row)
        self.add(cell)
        return cell

    cdef bint is_later(self, int64_t time) noexcept:
        """Return whether a time is later than all that was written, so that it has no row."""
        cdef int64_t observed = self.stored.segments.observed_ms
        return 0 <= observed < time

    def take_dirty(self):
        """Return the changed entries as ChangedRows, in the order of the last puts, and mark them as clean."""
        return self.taken(self.dirty_count)

    cdef ChangedRows taken(self, Py_ssize_t most):
        """Return those of the oldest changes, so many, as take_dirty does."""
        cdef ChangedRows changes = ChangedRows.__new__(ChangedRows)
        cdef changed_row change
        cdef Cell cell
        changes.make_room(most)
        changes.times = self.times
        change.data = NULL
        while changes.count < most:
            cell = <Cell>self.links[self.links[CHANGED].after].cell
            change.key, change.time, change.second = <PyObject *>cell.key, cell.time, cell.second
            change.cell = <PyObject *>cell
            change.held = NULL if cell.form == COUNTED else <PyObject *>cell.row
            change.is_timed = cell.form == TIMED
            change.number, change.newest, change.timestamp = cell.number, cell.newest, cell.timestamp
            change.headers, change.message = <PyObject *>cell.headers, <PyObject *>cell.message
            changes.keep(&change)
            cell.message = None
            if change.held is <PyObject *>None:
                self.remove(cell)
                continue
            cell.is_changed = False
            self.dirty_count -= 1
            self.unlink(cell.place)
            self.append(cell.place, CLEAN)
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
        if cell.used or cell.is_changed:
            return 0
        if cell.place:
            self.remove(cell)
        return 1

    def evict_clean(self, Py_ssize_t wanted):
        """Drop up to wanted clean entries, and return how many are left to drop, as NamedCache.evict_clean does."""
        cdef Py_ssize_t left = 2 * (self.count - self.dirty_count)  # used ones are passed once
        cdef Cell cell
        while wanted and left and self.links[CLEAN].after != CLEAN:
            cell = <Cell>self.links[self.links[CLEAN].after].cell
            left -= 1
            if cell.used:
                cell.used = False
                self.unlink(cell.place)
                self.append(cell.place, CLEAN)
            else:
                self.remove(cell)
                wanted -= 1
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

    cdef Cell find(self, key, int64_t time, int64_t second):
        cdef PyObject *found = self.table.find(key, time, second)
        if found is not NULL:
            return <Cell>found
        cdef Cell cell = self.table.load(key, time, second)
        if cell is None:
            cell = self.load(cache_key_of(self.table.times, key, time, second))
        self.grew = True
        return cell

    cdef bint put(self, Cell cell, int64_t timestamp, headers, message) except -1:
        cdef CellTable table = self.table
        table.changed_by(cell, timestamp, headers, message)
        cell.used = True
        if self.grew:
            self.grew = False
            return table.count >= table.check_at
        return False

    cdef bint count(self, key, int64_t time, int64_t second, int64_t timestamp, headers, message) except -1:
        """Add one to a count."""
        cdef Cell cell = self.find(key, time, second)
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

    cdef bint aggregate(
        self, initializer, aggregator, key, int64_t time, int64_t second, given, value, int64_t timestamp, headers, message
    ) except -1:
        """Put aggregator(given, value, old), where old is initializer() for a new key."""
        cdef Cell cell = self.find(key, time, second)
        cdef int64_t newest = timestamp
        if has_row(cell):
            old = self.own(cell.held(&newest))
            newest = max(newest, timestamp)
        else:
            old = initializer()
        new = aggregated(aggregator, given, value, old)
        old = None
        return self.put_new(cell, new, newest, timestamp, headers, message)

    cdef bint reduce(
        self, reducer, key, int64_t time, int64_t second, value, int64_t timestamp, headers, message
    ) except -1:
        """Put reducer(old, value), or value for a new key."""
        cdef Cell cell = self.find(key, time, second)
        cdef int64_t newest = timestamp
        new = value
        if has_row(cell):
            new = reducer(self.own(cell.held(&newest)), value)
            newest = max(newest, timestamp)
        return self.put_new(cell, new, newest, timestamp, headers, message)

    cdef bint replace(self, key, value, int64_t timestamp, headers, message) except -1:
        """Put the value of a key without times, without reading the old one; None deletes the row."""
        held = self.held(value)
        cdef PyObject *found = self.table.find(key, 0, 0)
        cdef Cell cell
        if found is not NULL:
            return self.put_held(<Cell>found, held, timestamp, timestamp, headers, message)
        cell = new_cell(key, 0, 0, None)
        self.table.add(cell)
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
