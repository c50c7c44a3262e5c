from libc.stdint cimport int64_t

from penstock.kernel.cells cimport CellTable, CellUpdates
from penstock.kernel.nodes cimport ChangeNode, Node, RecordContext
from penstock.kernel.rows cimport RowBuffer
from penstock.kernel.sinks cimport Changelog


cdef object key_for(aggregator, key)
cdef int use_by(aggregator) except -1


cdef class Rows:
    cdef RecordContext task
    cdef readonly object key_serde
    cdef object encode_key

    cdef bytes key_bytes(self, key)
    cdef int count(self, Node node, key, int64_t timestamp, headers) except -1
    cdef int aggregate(self, Node node, initializer, aggregator, key, value, int64_t timestamp, headers) except -1
    cdef int reduce(self, Node node, reducer, key, value, int64_t timestamp, headers) except -1
    cdef int replace(self, Node node, key, value, int64_t timestamp, headers) except -1
    cdef int renew(self, Node node, key, value, old, int64_t timestamp, headers) except -1
    cdef int use_of_key(self, Node node, serde) except -1


cdef class CachedRows(Rows):
    cdef readonly CellUpdates updates
    cdef object grown
    cdef bint keeps_messages

    cdef object source(self)
    cdef int put(self, key, int64_t time, int64_t second, held, int64_t timestamp, headers) except -1
    cdef int grow(self, int64_t timestamp, headers) except -1


cdef class StoredRows(Rows):
    cdef RowBuffer buffer
    cdef Changelog changelog
    cdef object encode, decode, exact, exact_type, value_serde
    cdef bint log_value_headers, log_tombstone_headers, sends_old, is_plain
    cdef int64_t row_time  # of the row that find returned

    cdef object find(self, bytes row_key)
    cdef object decoded(self, row)
    cdef int log(self, bytes row_key, data, int64_t timestamp, headers) except -1
    cdef int set_row(self, bytes row_key, row) except -1
    cdef object exactly(self, new, bint as_it_is)
    cdef object encoded(self, new)
    cdef object read_back(self, Node node, new, data, bint as_it_is)
    cdef int pass_on(self, Node node, key, new, old, data, int64_t timestamp, headers) except -1
    cdef int write(self, bytes row_key, value, int64_t timestamp, headers) except -1
    cdef int write_bytes(self, bytes row_key, data, int64_t timestamp, headers) except -1
    cdef int put(
        self, Node node, key, bytes row_key, new, old, int64_t timestamp, int64_t newest, headers, bint as_it_is
    ) except -1


cdef class PythonRows(Rows):
    cdef object get, update, as_read
    cdef bint wants_old, sends_initial

    cdef int aggregate_in(self, row_key, initializer, aggregator, key, value, int64_t timestamp, headers) except -1


cdef class RowGetter:
    cdef object get, key_serde, encode_key
    cdef readonly object read
    cdef CellTable table
    cdef RowBuffer buffer
    cdef bint sent
    cdef readonly object bytes_serde

    cdef object value(self, key, int64_t *time)
    cdef object data(self, key, int64_t *time)
    cdef object bytes_of(self, key)
    cdef int use_of_key(self, serde) except -1
    cdef dict known_keys(self, serde)


cdef class RowNode(Node):
    cdef Rows rows
    cdef object dropped


cdef class JoinedTable(ChangeNode):
    cdef object dropped
    cdef bint skips_older

    cdef bint enters(self, key, bint is_latest) except -1
