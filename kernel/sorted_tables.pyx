# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""Rows in the order of their keys in one blob, with what finds one of them: an SSTable of a store on Spark."""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, memset

cdef enum:
    LENGTH = 4
    FOOTER = 16
    BLOCK = 64  # bytes of a Bloom filter: a key's bits are in one of its blocks, which is one cache line
    ROW_BITS = 10  # of the filter: one key in a hundred that a table does not have is searched all the same
    PROBES = 6
    MAGIC = 0x31545350  # "PST1"

cdef struct Row:
    const char *key
    Py_ssize_t key_size
    const char *value
    Py_ssize_t value_size


@cython.final
cdef class SortedTable:
    """The rows of a blob, which is not unpacked; data: the blob, as bytes or as a file in memory.

    rows        key length, key, value length, value of each; a length has 4 bytes, big-endian
    starts      the position of each row, 4 bytes, as the processor has them
    filter      a Bloom filter of the keys
    footer      the sizes of rows and filter, the number of rows, a magic number, 4 bytes each

    Raises ValueError if the blob is damaged, as all reads do.
    """

    cdef Py_buffer view
    cdef const char *rows
    cdef const char *starts
    cdef const char *filter
    cdef Py_ssize_t rows_size, count, blocks
    cdef Row first, last

    def __init__(self, data not None):
        if self.view.buf is not NULL:
            raise RuntimeError("a table is not initialized twice")
        PyObject_GetBuffer(data, &self.view, PyBUF_SIMPLE)
        cdef Py_ssize_t size = self.view.len, filter_size
        if size < FOOTER:
            raise damaged()
        cdef const char *footer = <const char *>self.view.buf + size - FOOTER
        self.rows_size, filter_size = number_at(footer), number_at(footer + 4)
        self.count, self.blocks = number_at(footer + 8), filter_size // BLOCK
        self.rows = <const char *>self.view.buf
        self.starts = self.rows + self.rows_size
        self.filter = self.starts + self.count * LENGTH
        if number_at(footer + 12) != MAGIC or self.filter + filter_size != footer or not self.count or not self.blocks:
            raise damaged()
        self.row(0, &self.first)
        self.row(self.count - 1, &self.last)

    def __dealloc__(self):
        PyBuffer_Release(&self.view)

    def __len__(self):
        """Return the number of rows."""
        return self.count

    def between(self, bytes start, bytes end):
        """Return the rows with start <= key < end in order; None leaves a side open."""
        cdef Py_ssize_t place = 0 if start is None else self.place(PyBytes_AS_STRING(start), PyBytes_GET_SIZE(start))
        cdef Py_ssize_t last = self.count
        cdef Row row
        cdef list found = []
        if end is not None:
            last = self.place(PyBytes_AS_STRING(end), PyBytes_GET_SIZE(end))
        while place < last:
            self.row(place, &row)
            key = PyBytes_FromStringAndSize(row.key, row.key_size)
            found.append((key, PyBytes_FromStringAndSize(row.value, row.value_size)))
            place += 1
        return found

    cdef object value(self, const char *key, Py_ssize_t size, uint64_t hashed):
        """Return the value of a row, None if there is none."""
        cdef Row row
        cdef Py_ssize_t place
        if compared(&self.first, key, size) > 0 or compared(&self.last, key, size) < 0:
            return None
        if not has_bits(self.filter, self.blocks, hashed):
            return None
        place = self.place(key, size)
        self.row(place, &row)
        return PyBytes_FromStringAndSize(row.value, row.value_size) if compared(&row, key, size) == 0 else None

    cdef Py_ssize_t place(self, const char *key, Py_ssize_t size) except -1:
        """Return the place of the first row whose key is not below this one."""
        cdef Py_ssize_t low = 0, high = self.count, middle
        cdef Row row
        while low < high:
            middle = (low + high) // 2
            self.row(middle, &row)
            if compared(&row, key, size) < 0:
                low = middle + 1
            else:
                high = middle
        return low

    cdef int row(self, Py_ssize_t place, Row *found) except -1:
        """Look up the row at a place."""
        cdef Py_ssize_t at = number_at(self.starts + place * LENGTH), left = self.rows_size - at - 2 * LENGTH
        if left < 0:
            raise damaged()
        found.key_size = length_at(self.rows + at)
        left -= found.key_size
        if left < 0:
            raise damaged()
        found.key = self.rows + at + LENGTH
        found.value_size = length_at(found.key + found.key_size)
        if found.value_size > left:
            raise damaged()
        found.value = found.key + found.key_size + LENGTH
        return 0


def find(list tables not None, bytes key not None):
    """Return the value of a key in the first table that has it, None if none has."""
    cdef const char *bytes_ = PyBytes_AS_STRING(key)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(key)
    cdef uint64_t hashed = hash_of(bytes_, size)
    for table in tables:
        found = (<SortedTable?>table).value(bytes_, size, hashed)
        if found is not None:
            return found
    return None


def packed(rows, Py_ssize_t size):
    """Return rows, which are in the order of their keys, as blobs of tables; each ends when its rows have this size."""
    cdef Packer packer = Packer()
    cdef list blobs = []
    cdef bytes key, value
    cdef Row row
    for key, value in rows:
        row.key, row.key_size = PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
        row.value, row.value_size = PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)
        packer.add(&row)
        if packer.size >= size:
            blobs.append(packer.finish())
    if packer.count:
        blobs.append(packer.finish())
    return blobs


@cython.final
cdef class Merged:
    """Iterates over the blobs of tables with the rows of several runs; of rows with the same key the first run's counts.

    runs: lists of tables, each in the order of their keys. dropped: rows with this value are left out. size: see packed.
    """

    cdef list cursors
    cdef bytes dropped
    cdef Py_ssize_t size
    cdef Packer packer

    def __init__(self, runs, bytes dropped, Py_ssize_t size):
        self.cursors = [cursor_of(list(run)) for run in runs]
        self.dropped, self.size = dropped, size
        self.packer = Packer()

    def __iter__(self):
        return self

    def __next__(self):
        cdef Cursor first
        cdef Row row
        while self.packer.size < self.size:
            first = self.lowest()
            if first is None:
                break
            row = first.row
            if self.dropped is None or not equal(row.value, row.value_size, self.dropped):
                self.packer.add(&row)
            self.advance(&row)
        if not self.packer.count:
            raise StopIteration
        return self.packer.finish()

    cdef Cursor lowest(self):
        """Return the first cursor with the lowest key, None at the end of all."""
        cdef Cursor cursor, found = None
        for each in self.cursors:
            cursor = <Cursor>each
            if not cursor.ended and (found is None or compared(&cursor.row, found.row.key, found.row.key_size) < 0):
                found = cursor
        return found

    cdef int advance(self, Row *row) except -1:
        """Advance the cursors that are at a key."""
        cdef Cursor cursor
        for each in self.cursors:
            cursor = <Cursor>each
            if not cursor.ended and compared(&cursor.row, row.key, row.key_size) == 0:
                cursor.advance()
        return 0


@cython.final
cdef class Cursor:
    """A position among the rows of a run."""

    cdef list tables
    cdef Py_ssize_t table, place
    cdef Row row
    cdef bint ended

    cdef int advance(self) except -1:
        cdef SortedTable table
        self.place += 1
        while self.table < len(self.tables):
            table = <SortedTable?>self.tables[self.table]
            if self.place < table.count:
                table.row(self.place, &self.row)
                return 0
            self.table += 1
            self.place = 0
        self.ended = True
        return 0


cdef Cursor cursor_of(list tables):
    """Return a cursor at the first row."""
    cdef Cursor cursor = Cursor.__new__(Cursor)
    cursor.tables, cursor.place = tables, -1
    cursor.advance()
    return cursor


@cython.final
cdef class Packer:
    """Packs rows into a table."""

    cdef char *rows
    cdef uint32_t *starts
    cdef uint64_t *hashes
    cdef Py_ssize_t size, room, count, places

    def __dealloc__(self):
        free(self.rows)
        free(self.starts)
        free(self.hashes)

    cdef int add(self, const Row *row) except -1:
        """Add a row."""
        cdef Py_ssize_t end = self.size + 2 * LENGTH + row.key_size + row.value_size
        if end >= <Py_ssize_t>1 << 32:
            raise ValueError("a table has less than 4 GiB")
        if end > self.room:
            self.room = 2 * end
            self.rows = <char *>grown(self.rows, self.room)
        if self.count == self.places:
            self.places = 2 * self.places + 64
            self.starts = <uint32_t *>grown(self.starts, self.places * sizeof(uint32_t))
            self.hashes = <uint64_t *>grown(self.hashes, self.places * sizeof(uint64_t))
        self.starts[self.count] = <uint32_t>self.size
        self.hashes[self.count] = hash_of(row.key, row.key_size)
        self.count += 1
        written(written(self.rows + self.size, row.key, row.key_size), row.value, row.value_size)
        self.size = end
        return 0

    cdef bytes finish(self):
        """Return the table, and begin another one."""
        cdef Py_ssize_t blocks = (self.count * ROW_BITS + 8 * BLOCK - 1) // (8 * BLOCK), place
        cdef Py_ssize_t starts_size = self.count * LENGTH, filter_size = blocks * BLOCK
        cdef bytes blob = PyBytes_FromStringAndSize(NULL, self.size + starts_size + filter_size + FOOTER)
        cdef char *to = PyBytes_AS_STRING(blob)
        cdef uint32_t *footer = [<uint32_t>self.size, <uint32_t>filter_size, <uint32_t>self.count, MAGIC]
        memcpy(to, self.rows, self.size)
        memcpy(to + self.size, self.starts, starts_size)
        to += self.size + starts_size
        memset(to, 0, filter_size)
        for place in range(self.count):
            set_bits(to, blocks, self.hashes[place])
        memcpy(to + filter_size, footer, FOOTER)
        self.size = self.count = 0
        return blob


cdef void *grown(void *block, Py_ssize_t size) except NULL:
    cdef void *found = realloc(block, size)
    if found is NULL:
        raise MemoryError
    return found


cdef object damaged():
    return ValueError("a table of rows is damaged")


cdef inline int compared(const Row *row, const char *key, Py_ssize_t size) noexcept nogil:
    """Compare the key of a row with this one: below zero, zero, above zero."""
    cdef int order = memcmp(row.key, key, min(row.key_size, size))
    return order if order else (row.key_size > size) - (row.key_size < size)


cdef inline bint equal(const char *data, Py_ssize_t size, bytes other) noexcept:
    return size == PyBytes_GET_SIZE(other) and memcmp(data, PyBytes_AS_STRING(other), size) == 0


cdef inline Py_ssize_t number_at(const char *at) noexcept nogil:
    cdef uint32_t number
    memcpy(&number, at, sizeof(number))
    return number


cdef inline Py_ssize_t length_at(const char *at) noexcept nogil:
    cdef const unsigned char *bytes_ = <const unsigned char *>at
    return (<Py_ssize_t>bytes_[0] << 24) | (bytes_[1] << 16) | (bytes_[2] << 8) | bytes_[3]


cdef inline char *written(char *to, const char *data, Py_ssize_t size) noexcept nogil:
    to[0] = <char>(size >> 24)
    to[1] = <char>(size >> 16)
    to[2] = <char>(size >> 8)
    to[3] = <char>size
    memcpy(to + LENGTH, data, size)
    return to + LENGTH + size


cdef inline uint64_t hash_of(const char *key, Py_ssize_t size) noexcept nogil:
    """Return the hash of a key: FNV-1a, with its bits mixed as by MurmurHash3."""
    cdef uint64_t hashed = <uint64_t>0xcbf29ce484222325
    cdef Py_ssize_t at
    for at in range(size):
        hashed = (hashed ^ <unsigned char>key[at]) * <uint64_t>0x100000001b3
    hashed = (hashed ^ hashed >> 33) * <uint64_t>0xff51afd7ed558ccd
    hashed = (hashed ^ hashed >> 33) * <uint64_t>0xc4ceb9fe1a85ec53
    return hashed ^ hashed >> 33


cdef inline uint64_t block_of(Py_ssize_t blocks, uint64_t hashed) noexcept nogil:
    """Return where a key's block begins."""
    return ((hashed >> 32) * <uint64_t>blocks >> 32) * BLOCK


cdef inline void set_bits(char *bits, Py_ssize_t blocks, uint64_t hashed) noexcept nogil:
    cdef char *block = bits + block_of(blocks, hashed)
    cdef uint64_t left = hashed * <uint64_t>0x9e3779b97f4a7c15
    for _ in range(PROBES):
        block[left >> 3 & (BLOCK - 1)] |= <char>(1 << (left & 7))
        left >>= 9


cdef inline bint has_bits(const char *bits, Py_ssize_t blocks, uint64_t hashed) noexcept nogil:
    cdef const char *block = bits + block_of(blocks, hashed)
    cdef uint64_t left = hashed * <uint64_t>0x9e3779b97f4a7c15
    for _ in range(PROBES):
        if not block[left >> 3 & (BLOCK - 1)] >> (left & 7) & 1:
            return False
        left >>= 9
    return True
