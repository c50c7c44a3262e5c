# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""The nodes of tables: their rows, and what changes and joins these. docs/nodes.md explains it."""

cimport cython
from libc.stdint cimport int64_t

from penstock.kernel.aggregates cimport ChangeAggregator, aggregated, needs_key
from penstock.kernel.cells cimport CellTable, CellUpdates
from penstock.kernel import cells
from penstock.kernel.conversions cimport converted
from penstock.kernel.nodes cimport (
    NEEDS_BYTES,
    READS,
    ChangeNode,
    End,
    Key,
    KeyReader,
    Node,
    RecordContext,
    deliver,
    deliver_change,
    fields_of,
    key_bytes_of,
    key_from,
    key_of,
    windowed_key_from,
)
from penstock.kernel.rows cimport ChangedRows, RowBuffer, changed_row, sum_of, timed
from penstock.kernel.sinks cimport Changelog

cdef object NOT_CACHED = cells.NOT_CACHED, NO_ROW = cells.NO_ROW

cdef enum:  # of the keys of a cache
    PLAIN
    WINDOW
    SESSION


cdef object key_for(aggregator, key):
    """Return a record's key for an aggregator, None for one that does not need it."""
    return key_of(key) if needs_key(aggregator) else None


cdef int use_by(aggregator) except -1:
    """Return an aggregator's use of the key, see use_of_key."""
    return READS if needs_key(aggregator) else 0


cdef class Rows:
    """The rows of a table's key-value store, for the updates of one node. encode_key: None if keys are bytes."""

    cdef bytes key_bytes(self, key):
        return key_bytes_of(key, self.key_serde, self.encode_key)

    cdef int count(self, Node node, key, int64_t timestamp, headers) except -1:
        """Add one to the row of a key."""
        raise NotImplementedError

    cdef int aggregate(self, Node node, initializer, aggregator, key, value, int64_t timestamp, headers) except -1:
        """Put aggregator(key, value, old), where old is initializer() for a new key."""
        raise NotImplementedError

    cdef int reduce(self, Node node, reducer, key, value, int64_t timestamp, headers) except -1:
        """Put reducer(old, value), or value for a new key."""
        raise NotImplementedError

    cdef int replace(self, Node node, key, value, int64_t timestamp, headers) except -1:
        """Put a value; None deletes the row."""
        raise NotImplementedError

    cdef int renew(self, Node node, key, value, old, int64_t timestamp, headers) except -1:
        """As replace; old: the value before, if it is known. It goes on if it is asked for, not the stored one."""
        raise NotImplementedError

    cdef int use_of_key(self, Node node, serde) except -1:
        return NEEDS_BYTES if serde is self.key_serde else READS

    @property
    def counts(self):
        """Whether count() can be used."""
        return True


@cython.final
cdef class CachedRows(Rows):
    """Rows in a record cache, which forwards their changes when it is flushed.

    keeps_messages: whether a change keeps the message of its last put. grown(): evicts.
    """

    def __init__(self, RecordContext task not None, CellUpdates updates not None, key_serde, encode_key, grown, bint keeps_messages):
        self.task = task
        self.updates = updates
        self.key_serde = key_serde
        self.encode_key = encode_key
        self.grown = grown
        self.keeps_messages = keeps_messages

    @property
    def counts(self):
        return self.updates.native is int

    cdef object source(self):
        return self.task.message if self.keeps_messages else None

    cdef int count(self, Node node, key, int64_t timestamp, headers) except -1:
        if self.updates.count(self.key_bytes(key), 0, 0, timestamp, headers, self.source()):
            self.grow(timestamp, headers)
        return 0

    cdef int aggregate(self, Node node, initializer, aggregator, key, value, int64_t timestamp, headers) except -1:
        row_key, given = self.key_bytes(key), key_for(aggregator, key)
        if self.updates.aggregate(
            initializer, aggregator, row_key, 0, 0, given, value, timestamp, headers, self.source()
        ):
            self.grow(timestamp, headers)
        return 0

    cdef int reduce(self, Node node, reducer, key, value, int64_t timestamp, headers) except -1:
        if self.updates.reduce(reducer, self.key_bytes(key), 0, 0, value, timestamp, headers, self.source()):
            self.grow(timestamp, headers)
        return 0

    cdef int replace(self, Node node, key, value, int64_t timestamp, headers) except -1:
        if self.updates.replace(self.key_bytes(key), value, timestamp, headers, self.source()):
            self.grow(timestamp, headers)
        return 0

    cdef int renew(self, Node node, key, value, old, int64_t timestamp, headers) except -1:
        return self.replace(node, key, value, timestamp, headers)

    cdef int put(self, key, int64_t time, int64_t second, held, int64_t timestamp, headers) except -1:
        """Put the row of a key with times; None deletes it."""
        if self.updates.table.put(key, time, second, held, timestamp, headers, self.source()):
            self.grow(timestamp, headers)
        return 0

    cdef int grow(self, int64_t timestamp, headers) except -1:
        self.task.timestamp = timestamp
        self.task.headers = headers
        self.grown()
        return 0


cdef class StoredRows(Rows):
    """Rows in a store without a cache, written at once; the change goes on with the timestamp of the row.

    encode, decode: of values that are not None; exact, exact_type: see Serde. log_value_headers, log_tombstone_headers:
    whether the changelog gets headers. sends_old: whether the old value goes on, too.
    """

    def __init__(self, RecordContext task not None, RowBuffer buffer not None, Changelog changelog not None, key_serde,
                 encode_key, value_serde, encode, decode, exact, exact_type, log_headers, bint sends_old):
        self.task = task
        self.buffer, self.changelog = buffer, changelog
        self.key_serde, self.encode_key = key_serde, encode_key
        self.value_serde, self.encode, self.decode = value_serde, encode, decode
        self.exact, self.exact_type = exact, exact_type
        self.log_value_headers, self.log_tombstone_headers = log_headers
        self.sends_old = sends_old
        self.is_plain = value_serde.serializer is not None  # its bytes are not those of another topic

    cdef object find(self, bytes row_key):
        """Return the bytes of a row's value and keep its timestamp in row_time; None if there is no row."""
        found = self.buffer.find(row_key)
        self.row_time = self.buffer.row_time
        return found

    cdef object decoded(self, row):
        return row if self.decode is None else converted(self.decode, row)

    cdef int count(self, Node node, key, int64_t timestamp, headers) except -1:
        cdef bytes row_key = self.key_bytes(key)
        row = self.find(row_key)
        cdef int64_t newest = timestamp
        if row is None:
            new = 1
        else:
            new = self.decoded(row) + 1
            newest = max(timestamp, self.row_time)
        return self.put(node, key, row_key, new, None, timestamp, newest, headers, self.exact_type is int)

    cdef int aggregate(self, Node node, initializer, aggregator, key, value, int64_t timestamp, headers) except -1:
        cdef bytes row_key = self.key_bytes(key)
        row = self.find(row_key)
        cdef int64_t newest = timestamp
        if row is None:
            old = initializer()
        else:
            old = self.decoded(row)
            newest = max(timestamp, self.row_time)
        new = aggregated(aggregator, key_for(aggregator, key), value, old)
        return self.put(node, key, row_key, new, None, timestamp, newest, headers, False)

    cdef int reduce(self, Node node, reducer, key, value, int64_t timestamp, headers) except -1:
        cdef bytes row_key = self.key_bytes(key)
        row = self.find(row_key)
        cdef int64_t newest = timestamp
        if row is not None:
            newest = max(timestamp, self.row_time)
            value = reducer(self.decoded(row), value)
        return self.put(node, key, row_key, value, None, timestamp, newest, headers, False)

    cdef int replace(self, Node node, key, value, int64_t timestamp, headers) except -1:
        cdef bytes row_key = self.key_bytes(key)
        old = None
        if self.sends_old:
            row = self.find(row_key)
            if row is not None:
                old = self.decoded(row)
        # A value that its own serde has just read would be read back unchanged.
        cdef RecordContext task = self.task
        cdef bint is_read = value is task.written_value and task.written_serde is self.value_serde and self.is_plain
        return self.put(node, key, row_key, value, old, timestamp, timestamp, headers, is_read)

    cdef int renew(self, Node node, key, value, old, int64_t timestamp, headers) except -1:
        return self.put(node, key, self.key_bytes(key), value, old, timestamp, timestamp, headers, False)

    cdef int log(self, bytes row_key, data, int64_t timestamp, headers) except -1:
        if not self.log_value_headers and not (self.log_tombstone_headers and data is None):
            headers = None
        return self.changelog.write(row_key, data, timestamp, headers)

    cdef int write_bytes(self, bytes row_key, data, int64_t timestamp, headers) except -1:
        self.log(row_key, data, timestamp, headers)
        return self.set_row(row_key, None if data is None else timed(timestamp, <bytes?>data))

    cdef int set_row(self, bytes row_key, row) except -1:
        return self.buffer.set(row_key, row)

    cdef object exactly(self, new, bint as_it_is):
        """Return the object that the store would read back for a value, or the value; see Serde.exact."""
        return new if self.exact is None or as_it_is or type(new) is self.exact_type else self.exact(new)

    cdef object encoded(self, new):
        return new if self.encode is None else converted(self.encode, new)

    cdef object read_back(self, Node node, new, data, bint as_it_is):
        """Return what goes on for a value that has been written as data."""
        return self.decoded(data) if self.exact is None and not as_it_is and type(node.child) is not End else new

    cdef int put(
        self, Node node, key, bytes row_key, new, old, int64_t timestamp, int64_t newest, headers, bint as_it_is
    ) except -1:
        """Write a row and pass the change on. as_it_is: the store would read the value back unchanged."""
        cdef RecordContext task = self.task
        data = None
        if new is not None:
            new = self.exactly(new, as_it_is)
            data = self.encoded(new)
            new = self.read_back(node, new, data, as_it_is)
        task.timestamp = timestamp
        task.headers = headers
        self.write_bytes(row_key, data, timestamp if data is None else newest, headers)
        return self.pass_on(node, key, new, old if self.sends_old else None, data, newest, headers)

    cdef int pass_on(self, Node node, key, new, old, data, int64_t timestamp, headers) except -1:
        """Pass a change on. data: the bytes of the new value."""
        cdef RecordContext task = self.task
        if type(node.child) is End:
            return 0
        if self.is_plain and new is not None:
            task.written_value, task.written_serde, task.written_data = new, self.value_serde, data
        deliver_change(node.child, key, new, old, True, timestamp, headers)
        task.at = node.name
        return 0

    cdef int write(self, bytes row_key, value, int64_t timestamp, headers) except -1:
        """Write a row, None to delete it; nothing goes on."""
        return self.write_bytes(row_key, None if value is None else self.encoded(value), timestamp, headers)

    cdef int use_of_key(self, Node node, serde) except -1:
        return (NEEDS_BYTES if serde is self.key_serde else READS) | node.child.use_of_key(serde)


@cython.final
cdef class PythonRows(Rows):
    """The rows of any other store, by its own functions.

    get(key): a row, which is the caller's own. update(key, new, old, row's timestamp, timestamp, headers): puts a value and
    passes the change on. as_read(value): a copy, as the store reads it back. wants_old: whether update needs old values.
    sends_initial: whether the old value of a new aggregate is the initializer's, as in Kafka Streams without a cache.
    """

    def __init__(self, RecordContext task not None, get, update, as_read, bint wants_old, bint sends_initial=True):
        self.task = task
        self.get, self.update, self.as_read = get, update, as_read
        self.wants_old, self.sends_initial = wants_old, sends_initial

    @property
    def counts(self):
        return False

    cdef int aggregate(self, Node node, initializer, aggregator, key, value, int64_t timestamp, headers) except -1:
        key = key_of(key)
        return self.aggregate_in(key, initializer, aggregator, key, value, timestamp, headers)

    cdef int aggregate_in(self, row_key, initializer, aggregator, key, value, int64_t timestamp, headers) except -1:
        """As aggregate, in the row of another key, such as that of a window."""
        cdef int64_t newest = timestamp
        self.task.written_value = None
        sent = None
        row = self.get(row_key)
        if row is None:
            old = initializer()
            if self.wants_old and self.sends_initial:
                sent = initializer()
        else:
            old, row_time = row
            newest = max(timestamp, <int64_t>row_time)
            if self.wants_old and old is not None:
                sent = self.as_read(old)  # the aggregator may change its argument in place
        self.update(row_key, aggregated(aggregator, key, value, old), sent, newest, timestamp, headers)
        return 0

    cdef int reduce(self, Node node, reducer, key, value, int64_t timestamp, headers) except -1:
        cdef int64_t newest = timestamp
        self.task.written_value = None
        key = key_of(key)
        sent = None
        row = self.get(key)
        if row is not None:
            old, row_time = row
            newest = max(timestamp, <int64_t>row_time)
            if self.wants_old and old is not None:
                sent = self.as_read(old)
            value = reducer(old, value)
        self.update(key, value, sent, newest, timestamp, headers)
        return 0

    cdef int replace(self, Node node, key, value, int64_t timestamp, headers) except -1:
        key = key_of(key)
        row = self.get(key) if self.wants_old else None
        return self.renew(node, key, value, None if row is None else row[0], timestamp, headers)

    cdef int renew(self, Node node, key, value, old, int64_t timestamp, headers) except -1:
        self.task.written_value = None
        self.update(key_of(key), value, old if self.wants_old else None, timestamp, timestamp, headers)
        return 0

    cdef int use_of_key(self, Node node, serde) except -1:
        return READS


@cython.final
cdef class RowGetter:
    """Finds the rows of a table for a join.

    get(key): a row, (value, timestamp) or None. Before, it is looked up in the table's cache (table: its cells) or in its
    write buffer, if there is one that needs no more. key_serde, encode_key, read: of these, see Cells. sent: rows without the
    cache's pending changes; see get_forwarded. bytes_serde: whose bytes data() returns, None if it must not be called.
    """

    def __init__(self, get, bint sent=False, CellTable table=None, RowBuffer buffer=None, key_serde=None, encode_key=None,
                 read=None, bytes_serde=None):
        self.get, self.sent, self.table, self.buffer = get, sent, table, buffer
        self.key_serde, self.encode_key, self.read = key_serde, encode_key, read
        self.bytes_serde = bytes_serde

    cdef object value(self, key, int64_t *time):
        """Return the value of a key's row and set the row's time; NO_ROW if there is none."""
        if self.table is not None:
            key_bytes = self.bytes_of(key)
            found = self.table.read_sent(key_bytes, time) if self.sent else self.table.read(key_bytes, time)
        elif self.buffer is not None:
            found = self.buffer.find(self.bytes_of(key))
            if found is None:
                return NO_ROW
            time[0] = self.buffer.row_time
        else:
            found = NOT_CACHED
        if found is not NOT_CACHED:
            return found if found is NO_ROW or self.read is None else converted(self.read, found)
        row = self.get(key_of(key))
        if row is None:
            return NO_ROW
        time[0] = fields_of(row)[1]
        return (<tuple>row)[0]

    cdef object data(self, key, int64_t *time):
        """Return the bytes of a row's value and set the row's time; NO_ROW if there is no row, NOT_CACHED: see value()."""
        key_bytes = self.bytes_of(key)
        if self.buffer is None:
            return self.table.read_sent(key_bytes, time) if self.sent else self.table.read_below(key_bytes, time)
        found = self.buffer.find(key_bytes)
        time[0] = self.buffer.row_time
        return NO_ROW if found is None else found

    cdef object bytes_of(self, key):
        return key_bytes_of(key, self.key_serde, self.encode_key)

    cdef int use_of_key(self, serde) except -1:
        if self.table is None and self.buffer is None:
            return READS
        return NEEDS_BYTES if serde is self.key_serde else READS

    cdef dict known_keys(self, serde):
        return self.table.by_key if self.table is not None and serde is self.key_serde else None


cdef class RowNode(Node):
    """Base of nodes that update rows. dropped(reason): counts a record that is not used."""

    def __init__(self, task, name, child, Rows rows, dropped):
        Node.__init__(self, task, name, child)
        self.rows, self.dropped = rows, dropped

    cpdef dict known_keys(self, serde):
        if type(self.rows) is CachedRows and self.rows.key_serde is serde:
            return (<CachedRows>self.rows).updates.table.by_key
        return None

    cpdef int use_of_key(self, serde) except -1:
        return self.rows.use_of_key(self, serde)


@cython.final
cdef class Count(RowNode):
    """Counts the records of each key."""

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        self.task.at = self.name
        if key is None or value is None:
            self.dropped("null key or value")
            return 0
        return self.rows.count(self, key, timestamp, headers)


@cython.final
cdef class Aggregate(RowNode):
    """Aggregates the values of each key."""

    cdef object initializer, aggregator

    def __init__(self, task, name, child, Rows rows not None, dropped, initializer, aggregator):
        RowNode.__init__(self, task, name, child, rows, dropped)
        self.initializer, self.aggregator = initializer, aggregator

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        self.task.at = self.name
        if key is None or value is None:
            self.dropped("null key or value")
            return 0
        return self.rows.aggregate(self, self.initializer, self.aggregator, key, value, timestamp, headers)

    cpdef int use_of_key(self, serde) except -1:
        return use_by(self.aggregator) | RowNode.use_of_key(self, serde)


@cython.final
cdef class Reduce(RowNode):
    """Reduces the values of each key."""

    cdef object reducer

    def __init__(self, task, name, child, Rows rows not None, dropped, reducer):
        RowNode.__init__(self, task, name, child, rows, dropped)
        self.reducer = reducer

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        self.task.at = self.name
        if key is None or value is None:
            self.dropped("null key or value")
            return 0
        return self.rows.reduce(self, self.reducer, key, value, timestamp, headers)


@cython.final
cdef class TableAggregate(RowNode):
    """Aggregates the changes of a grouped table. no_key(): raises."""

    cdef ChangeAggregator aggregator
    cdef object no_key

    def __init__(self, task, name, child, Rows rows not None, ChangeAggregator aggregator not None, no_key):
        RowNode.__init__(self, task, name, child, rows, None)
        self.aggregator, self.no_key = aggregator, no_key

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        self.task.at = self.name
        if key is None:
            self.no_key()
        return self.rows.aggregate(self, nothing, self.aggregator, key, value, timestamp, headers)

    cpdef int use_of_key(self, serde) except -1:
        return use_by(self.aggregator) | RowNode.use_of_key(self, serde)


def nothing():
    """Return the aggregate of a group without values."""


@cython.final
cdef class TableSource(RowNode):
    """Turns records into the rows of a table; with rows None, into changes of a table that is not stored."""

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        self.task.at = self.name
        if key is None:
            self.dropped("null key")
            return 0
        if self.rows is None:
            return deliver_change(self.child, key, value, None, True, timestamp, headers)
        return self.rows.replace(self, key, value, timestamp, headers)

    cpdef int use_of_key(self, serde) except -1:
        return self.child.use_of_key(serde) if self.rows is None else RowNode.use_of_key(self, serde)


@cython.final
cdef class StreamTableJoin(Node):
    """Joins a record with its key's row: joiner(left, right).

    keys: how many keys joiner gets before these: 1 is the record's, 2 are the record's and the row's. as_of(key,
    timestamp): reads the row of a versioned table; rows: of any other one. mapper(key, value): the key of a global
    table's row, None for other tables. dropped: see RowNode.
    """

    cdef object joiner, dropped, as_of, mapper
    cdef int keys
    cdef bint left_join
    cdef RowGetter rows

    def __init__(self, task, name, child, joiner, int keys, bint left_join, dropped, RowGetter rows not None, as_of,
                 mapper):
        Node.__init__(self, task, name, child)
        self.joiner, self.keys, self.left_join, self.dropped = joiner, keys, left_join, dropped
        self.rows, self.as_of, self.mapper = rows, as_of, mapper

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        cdef RecordContext task = self.task
        cdef int64_t row_time
        right = NO_ROW
        row_key = key
        task.at = self.name
        if self.mapper is not None:
            task.written_value = None
            row_key = self.mapper(key_of(key), value)
        if value is None or (row_key is None and not self.left_join):
            self.dropped("null join key or value")
            return 0
        if row_key is not None:
            if self.as_of is None:
                right = self.rows.value(row_key, &row_time)
            else:
                row = self.as_of(key_of(row_key), timestamp)
                right = NO_ROW if row is None else fields_of(row)[0]
        if right is NO_ROW:
            if not self.left_join:
                return 0
            right = None
        task.written_value = None
        if self.keys == 0:
            joined = self.joiner(value, right)
        elif self.keys == 1:
            joined = self.joiner(key_of(key), value, right)
        else:
            joined = self.joiner(key_of(key), row_key, value, right)
        return deliver(self.child, key, joined, timestamp, headers)

    cpdef int use_of_key(self, serde) except -1:
        if self.keys or self.as_of is not None or self.mapper is not None:
            return READS
        return self.child.use_of_key(serde) | self.rows.use_of_key(serde)

    cpdef dict known_keys(self, serde):
        return None if self.as_of is not None or self.mapper is not None else self.rows.known_keys(serde)


cdef class JoinedTable(ChangeNode):
    """Base of nodes that changes of a joined table enter.

    skips_older: whether they leave out changes that are not the latest ones of their key (KIP-914). dropped: see RowNode.
    """

    def __init__(self, task, name, child, bint skips_older, dropped):
        Node.__init__(self, task, name, child)
        self.skips_older, self.dropped = skips_older, dropped

    cdef bint enters(self, key, bint is_latest) except -1:
        """Begin with a change: return whether it is joined; one that is not is counted."""
        self.task.at = self.name
        if key is None:
            self.dropped("null key")
            return False
        if self.skips_older and not is_latest:
            self.dropped("out-of-order record of a versioned table")
            return False
        return True


@cython.final
cdef class TableJoin(JoinedTable):
    """Joins a change of one side of a table-table join with the other side's row: joiner(left value, right value).

    is_right: whether it is the right side that changes. needs_this, needs_other: whether a result needs a row on this
    side, and on the other one. send_old: whether the old result goes on, too.
    """

    cdef object joiner
    cdef RowGetter rows
    cdef bint is_right, needs_this, needs_other, send_old

    def __init__(self, task, name, child, joiner, bint is_right, RowGetter rows not None, bint needs_this, bint needs_other,
                 bint send_old, bint skips_older, dropped):
        JoinedTable.__init__(self, task, name, child, skips_older, dropped)
        self.joiner, self.is_right, self.rows = joiner, is_right, rows
        self.needs_this, self.needs_other, self.send_old = needs_this, needs_other, send_old

    cdef object join(self, this, other):
        if this is None and (self.needs_this or other is None):
            return None
        return self.joiner(other, this) if self.is_right else self.joiner(this, other)

    cdef int change(self, key, new, old, bint is_latest, int64_t timestamp, headers) except -1:
        cdef int64_t other_time = 0
        if not self.enters(key, is_latest):
            return 0
        self.task.written_value = None
        other = self.rows.value(key, &other_time)
        if other is not NO_ROW:
            timestamp = max(timestamp, other_time)
        elif self.needs_other or (new is None and old is None):
            return 0
        else:
            other = None
        joined = self.join(new, other)
        before = self.join(old, other) if self.send_old else None
        return deliver_change(self.child, key, joined, before, is_latest, timestamp, headers)

    cpdef int use_of_key(self, serde) except -1:
        return self.rows.use_of_key(serde) | self.child.use_of_key(serde)

    cpdef dict known_keys(self, serde):
        return self.rows.known_keys(serde)


@cython.final
cdef class WithoutOld(ChangeNode):
    """Passes changes on without old values."""

    cdef int change(self, key, new, old, bint is_latest, int64_t timestamp, headers) except -1:
        return deliver_change(self.child, key, new, None, is_latest, timestamp, headers)

    cpdef int use_of_key(self, serde) except -1:
        return self.child.use_of_key(serde)


@cython.final
cdef class TableMerge(RowNode):
    """Puts changes that have been computed into rows."""

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        new, old, is_latest = value
        return self.change(key, new, old, is_latest, timestamp, headers)

    cdef int change(self, key, new, old, bint is_latest, int64_t timestamp, headers) except -1:
        self.task.at = self.name
        return self.rows.renew(self, key, new, old, timestamp, headers)


cdef class TableStep(ChangeNode):
    """Base of nodes that compute the values of a table from those of another one.

    function(value), or (key, value) with with_key. rows: of the computed table, None if it is not stored. old_value(key):
    the stored value, for tables that skip changes from nothing to nothing; otherwise None. send_old: whether old values
    go on.
    """

    cdef object function, old_value
    cdef Rows rows
    cdef bint with_key, send_old, skips

    def __init__(self, task, name, child, function, bint with_key, Rows rows, bint send_old, bint skips, old_value):
        Node.__init__(self, task, name, child)
        self.function, self.with_key, self.rows = function, with_key, rows
        self.send_old, self.skips, self.old_value = send_old, skips, old_value

    cdef object value(self, key, value):
        raise NotImplementedError

    cdef int change(self, key, new, old, bint is_latest, int64_t timestamp, headers) except -1:
        self.task.at = self.name
        self.task.written_value = None
        if self.with_key:
            key = key_of(key)
        if new is not None:
            new = self.value(key, new)
        if self.rows is None:
            old = self.value(key, old) if self.send_old and old is not None else None
        elif self.skips:
            old = self.old_value(key_of(key))
        if self.skips and new is None and old is None:
            return 0
        if self.rows is not None:
            return self.rows.replace(self, key, new, timestamp, headers)
        return deliver_change(self.child, key, new, old, is_latest, timestamp, headers)

    cpdef int use_of_key(self, serde) except -1:
        if self.with_key or (self.rows is not None and self.skips):
            return READS
        return self.child.use_of_key(serde) if self.rows is None else self.rows.use_of_key(self, serde)


@cython.final
cdef class TableFilter(TableStep):
    """Keeps the rows that a predicate is true for, or with negated false."""

    cdef bint negated

    def __init__(self, task, name, child, predicate, bint negated, Rows rows, bint send_old, bint skips, old_value):
        TableStep.__init__(self, task, name, child, predicate, True, rows, send_old, skips, old_value)
        self.negated = negated

    cdef object value(self, key, value):
        return None if bool(self.function(key, value)) == self.negated else value


@cython.final
cdef class TableMapValues(TableStep):
    """Replaces values."""

    cdef object value(self, key, value):
        return self.function(key, value) if self.with_key else self.function(value)


@cython.final
cdef class RepartitionMap(ChangeNode):
    """Maps the old and the new value of a change to groups: mapper(key, value) -> (group, value), skipped if a part is None.

    combined: whether a change within a group is one record. skips_older: whether changes that are not the latest are
    left out. no_key(): raises. check(name, found): raises unless a mapper's result is a pair.
    """

    cdef object mapper, check, no_key
    cdef bint combined, skips_older

    def __init__(self, task, name, child, mapper, check, no_key, bint combined, bint skips_older):
        Node.__init__(self, task, name, child)
        self.mapper, self.check, self.no_key = mapper, check, no_key
        self.combined, self.skips_older = combined, skips_older

    cdef tuple pair_of(self, key, value):
        pair = self.mapper(key, value)
        if type(pair) is not tuple or len(<tuple>pair) != 2:
            self.check(self.name, pair)
        one, other = pair
        return None if one is None or other is None else (one, other)

    cdef int change(self, key, new, old, bint is_latest, int64_t timestamp, headers) except -1:
        cdef tuple added = None, removed = None
        self.task.at = self.name
        self.task.written_value = None
        if self.skips_older and not is_latest:
            return 0
        if key is None:
            self.no_key()
        key = key_of(key)
        if new is not None:
            added = self.pair_of(key, new)
        if old is not None:
            removed = self.pair_of(key, old)
        if added is not None and removed is not None and self.combined and added[0] == removed[0]:
            return deliver_change(self.child, removed[0], added[1], removed[1], is_latest, timestamp, headers)
        if removed is not None:
            deliver_change(self.child, removed[0], None, removed[1], is_latest, timestamp, headers)
        if added is not None:
            deliver_change(self.child, added[0], added[1], None, is_latest, timestamp, headers)
        return 0


cdef int64_t end_of(int64_t start, int64_t size_ms, window_end) except? -1:
    """Return the end of a window, by window_end(start) if that is not None."""
    return sum_of(start, size_ms) if window_end is None else window_end(start)


@cython.final
cdef class FlushedChanges:
    """Passes the changes of a cached table on when the cache is flushed; see StateStore.send_changes.

    form: of the cache's keys, see the enum; size_ms, window_end: of windows, see Cells. read(held value): None where it
    is the value itself. value_serde: None if its bytes depend on the topic. holds_bytes: whether held values are its bytes.
    timestamped: whether a row is (value, timestamp). headers: whether they go on.
    """

    cdef RecordContext task
    cdef object name
    cdef Node child
    cdef KeyReader reader
    cdef int form
    cdef int64_t size_ms
    cdef object window_end, read, value_serde
    cdef bint holds_bytes, timestamped, keeps_headers

    def __init__(self, RecordContext task not None, name, Node child not None, key_serde, decode_key, int form, int64_t size_ms,
                 window_end, read, value_serde, bint holds_bytes, bint timestamped, bint keeps_headers):
        self.task, self.name, self.child = task, name, child
        self.reader = KeyReader(key_serde, decode_key)
        self.form, self.size_ms, self.window_end = form, size_ms, window_end
        self.read, self.value_serde, self.holds_bytes = read, value_serde, holds_bytes
        self.timestamped, self.keeps_headers = timestamped, keeps_headers

    cdef Key key(self, const changed_row *change):
        cdef bytes data = <bytes?><object>change.key
        if self.form == PLAIN:
            return key_from(data, self.reader)
        if self.form == SESSION:
            return windowed_key_from(data, self.reader, change.second, change.time)
        return windowed_key_from(data, self.reader, change.time, end_of(change.time, self.size_ms, self.window_end))

    def send(self, ChangedRows changes not None, list olds):
        """Pass the changes of a flush on; olds: the rows before, None if they are not asked for."""
        cdef RecordContext task = self.task
        cdef changed_row *change
        cdef int64_t at
        cdef Py_ssize_t i
        cdef Key key
        at_before = task.at
        if task.tracer is not None:
            task.tracer.begin(self.name)
        for i in range(changes.count):
            change = changes.rows + i
            at, headers = change.timestamp, <object>change.headers
            task.at = self.name
            task.timestamp, task.headers, task.message = at, headers, <object>change.message
            key = self.key(change)
            old = None if olds is None else olds[i]
            held = None
            if change.held is NULL:
                held, at = change.number, change.newest
            elif change.is_timed:
                held, at = <object>change.held, change.newest
            elif self.timestamped:
                row = <object>change.held
                if row is not None:
                    held, at = (<tuple?>row)[0], (<tuple>row)[1]
            else:
                held = <object>change.held
                if self.form == SESSION:
                    at = key.end
                if not self.keeps_headers:
                    headers = None
            if self.timestamped and old is not None:
                old = old[0]
            new = held if held is None or self.read is None else converted(self.read, held)
            if old is not None and self.read is not None:
                old = converted(self.read, old)
            if self.value_serde is None:
                task.written_value = None
            else:
                task.written_value, task.written_serde = new, self.value_serde
                task.written_data = <object>change.data if change.data is not NULL else held if self.holds_bytes else None
            deliver_change(self.child, key, new, old, True, at, headers)
        task.at = at_before
