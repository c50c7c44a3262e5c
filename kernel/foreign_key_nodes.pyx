# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""The nodes of foreign-key joins (KIP-213); topology/operators/foreign_key_join.py declares them."""

cimport cython
from libc.stdint cimport int64_t

from penstock.kernel import cells
from penstock.kernel.codecs cimport hash128
from penstock.kernel.named_tuples cimport tuple_of_five, tuple_of_four, tuple_of_one, tuple_of_two
from penstock.kernel.nodes cimport (
    ChangeNode,
    KeyReader,
    Node,
    RecordContext,
    deliver,
    deliver_change,
    fields_of,
    key_from,
    key_of,
    written_data_of,
)
from penstock.kernel.table_nodes cimport JoinedTable, RowGetter, StoredRows

cdef object NOT_CACHED = cells.NOT_CACHED, NO_ROW = cells.NO_ROW

cdef enum:  # of a subscription: Instruction, in foreign_key_serdes.py
    DELETE_ONLY
    DELETE
    ALWAYS
    IF_FOUND

cdef enum:  # the highest versions that are known
    SUBSCRIPTION_VERSION = 1
    RESPONSE_VERSION = 0


@cython.final
cdef class SubscriptionSend(JoinedTable):
    """Subscribes left rows of a foreign-key join under their foreign keys; see SubscriptionSendProcessor.

    extract(value), or (key, value) with with_key: a foreign key. to_bytes: of foreign keys. asks: the instruction where
    the foreign key stays. steps_for(old foreign key, new one, whether there is a row): for all other changes. hash_of(value):
    its hash; that of bytes that serde has written is known. subscription: the type of subscriptions; partition, version:
    their last fields.
    """

    cdef object extract, to_bytes, asks, steps_for, hash_of, serde, partition, version
    cdef type subscription
    cdef bint with_key

    def __init__(self, task, name, child, extract, bint with_key, to_bytes, asks, steps_for, hash_of, serde,
                 type subscription, partition, version, bint skips_older, dropped):
        JoinedTable.__init__(self, task, name, child, skips_older, dropped)
        self.extract, self.with_key, self.to_bytes = extract, with_key, to_bytes
        self.asks, self.steps_for = asks, steps_for
        self.hash_of, self.serde = hash_of, serde
        self.subscription, self.partition, self.version = subscription, partition, version

    cdef object foreign_key(self, key, value):
        if value is None:
            return None
        return self.extract(key, value) if self.with_key else self.extract(value)

    cdef int change(self, key, new, old, bint is_latest, int64_t timestamp, headers) except -1:
        cdef RecordContext task = self.task
        cdef bytes data
        if not self.enters(key, is_latest) or (new is None and old is None):
            return 0
        data = written_data_of(task, new, self.serde)
        task.written_value = None
        key = key_of(key)
        before, after = self.foreign_key(key, old), self.foreign_key(key, new)
        stays = after is not None and (before is None or self.to_bytes(before) == self.to_bytes(after))
        steps = ((after, self.asks),) if stays else self.steps_for(before, after, new is not None)
        if not steps:
            return 0
        value_hash = None if new is None else self.hash_of(new) if data is None else hash128(data)
        for foreign_key, instruction in steps:
            value = tuple_of_five(self.subscription, value_hash, instruction, key, self.partition, self.version)
            deliver(self.child, foreign_key, value, timestamp, headers)
            task.at = self.name
        return 0


@cython.final
cdef class SubscriptionReceive(Node):
    """Stores the subscriptions to rows of the right table; see SubscriptionReceiveProcessor.

    to_bytes(foreign key, primary key): the row's key. rows, or put(row key, row): where rows go. combined_key, row_type:
    types of what goes on. refuse(version), dropped: as in other nodes.
    """

    cdef object to_bytes, put, refuse, dropped
    cdef StoredRows rows
    cdef type combined_key, row_type

    def __init__(self, task, name, child, to_bytes, StoredRows rows, put, type combined_key, type row_type, refuse, dropped):
        Node.__init__(self, task, name, child)
        self.to_bytes, self.rows, self.put = to_bytes, rows, put
        self.combined_key, self.row_type = combined_key, row_type
        self.refuse, self.dropped = refuse, dropped

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        cdef RecordContext task = self.task
        cdef tuple fields = fields_of(value)
        cdef int instruction = fields[1], version = fields[4]
        task.at = self.name
        task.written_value = None
        key = key_of(key)
        if key is None and instruction != ALWAYS:
            self.dropped("null foreign key")
            return 0
        if version > SUBSCRIPTION_VERSION:
            self.refuse(version)
        primary = fields[2]
        row = tuple_of_two(self.row_type, value, timestamp)
        if key is not None:
            task.timestamp, task.headers = timestamp, headers
            row_key = self.to_bytes(key, primary)
            is_deleted = instruction == DELETE or instruction == DELETE_ONLY
            if self.rows is not None:
                self.rows.write(row_key, None if is_deleted else value, timestamp, headers)
            else:
                self.put(row_key, None if is_deleted else row)
        combined = tuple_of_two(self.combined_key, key, primary)
        return deliver_change(self.child, combined, row, None, True, timestamp, headers)


@cython.final
cdef class SubscriptionJoin(ChangeNode):
    """Responds to a new subscription with the row of the right table; see SubscriptionJoinProcessor.

    rows: of the right table. serialized: the type of values that go on as bytes, None if they have to be read. response:
    the type of responses.
    """

    cdef RowGetter rows
    cdef type serialized, response

    def __init__(self, task, name, child, RowGetter rows not None, type serialized, type response):
        Node.__init__(self, task, name, child)
        self.rows, self.serialized, self.response = rows, serialized, response

    cdef int change(self, key, new, old, bint is_latest, int64_t timestamp, headers) except -1:
        cdef tuple keys = fields_of(key), row = fields_of(new), subscription = fields_of(row[0])
        cdef int instruction = subscription[1]
        cdef int64_t newest = row[1], found = newest
        self.task.at = self.name
        value = NO_ROW
        if keys[0] is not None:
            value = NOT_CACHED if self.serialized is None else self.rows.data(keys[0], &found)
            if value is NOT_CACHED:
                value = self.rows.value(keys[0], &found)
            elif value is not NO_ROW:
                value = tuple_of_one(self.serialized, value)
            if value is not NO_ROW:
                newest = max(newest, found)
        if instruction == DELETE_ONLY or (instruction == IF_FOUND and value is NO_ROW):
            return 0
        if instruction == DELETE or value is NO_ROW:
            value = None
        answer = tuple_of_four(self.response, subscription[0], value, subscription[3], RESPONSE_VERSION)
        return deliver(self.child, keys[1], answer, newest, headers)


@cython.final
cdef class ForeignTableJoin(JoinedTable):
    """Sends a change of the right table of a foreign-key join to all its subscribers; see ForeignTableJoinProcessor.

    prefix(key): what the keys of its subscriptions begin with. scan(prefix): these rows, (row key, (subscription,
    timestamp)). primary_serde, primary_from_bytes: of the keys of left rows, see KeyReader. response: the type
    of responses. skips_older, dropped: as in other nodes.
    """

    cdef object prefix, scan, dropped
    cdef KeyReader reader
    cdef type response
    cdef bint skips_older

    def __init__(self, task, name, child, prefix, scan, primary_serde, primary_from_bytes, type response, bint skips_older,
                 dropped):
        JoinedTable.__init__(self, task, name, child, skips_older, dropped)
        self.prefix, self.scan, self.response = prefix, scan, response
        self.reader = KeyReader(primary_serde, primary_from_bytes)

    cdef int change(self, key, new, old, bint is_latest, int64_t timestamp, headers) except -1:
        cdef bytes prefix, primary
        cdef tuple subscription
        if not self.enters(key, is_latest):
            return 0
        self.task.written_value = None
        prefix = self.prefix(key_of(key))
        for row_key, row in self.scan(prefix):
            subscription = fields_of(fields_of(row)[0])
            answer = tuple_of_four(self.response, subscription[0], new, subscription[3], RESPONSE_VERSION)
            primary = (<bytes?>row_key)[len(prefix):]
            deliver(self.child, key_from(primary, self.reader), answer, timestamp, headers)
            self.task.at = self.name
        return 0


@cython.final
cdef class ResponseJoin(Node):
    """Joins a response with the left row that asked for it; see ResponseJoinProcessor.

    rows: of the left table. by_bytes: whether its bytes are those that were hashed; then decode reads them. hash_of(value): of
    a left value. refuse(version), dropped: as in other nodes.
    """

    cdef object joiner, hash_of, decode, refuse, dropped
    cdef RowGetter rows
    cdef bint left_join, by_bytes

    def __init__(self, task, name, child, joiner, bint left_join, RowGetter rows not None, bint by_bytes, hash_of, decode, refuse,
                 dropped):
        Node.__init__(self, task, name, child)
        self.joiner, self.left_join, self.rows, self.by_bytes = joiner, left_join, rows, by_bytes
        self.hash_of, self.decode = hash_of, decode
        self.refuse, self.dropped = refuse, dropped

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        cdef tuple fields = fields_of(value)
        cdef int version = fields[3]
        cdef int64_t time
        self.task.at = self.name
        self.task.written_value = None
        if version != RESPONSE_VERSION:
            self.refuse(version)
        current = None
        left = self.rows.data(key, &time) if self.by_bytes else NOT_CACHED
        cdef bint is_data = left is not NOT_CACHED
        if not is_data:
            left = self.rows.value(key, &time)
        if left is not NO_ROW:
            current = hash128(<bytes?>left) if is_data else self.hash_of(left)
        if fields[0] != current:
            self.dropped("foreign-key response for a value that has changed since")
            return 0
        if left is NO_ROW:
            left = None
        elif is_data and self.decode is not None:
            left = self.decode(left)
        joined, right = None, fields[1]
        if right is not None or (self.left_join and left is not None):
            joined = self.joiner(left, right)
        return deliver(self.child, key, joined, timestamp, headers)

    cpdef int use_of_key(self, serde) except -1:
        return self.rows.use_of_key(serde) | self.child.use_of_key(serde)

    cpdef dict known_keys(self, serde):
        return self.rows.known_keys(serde)
