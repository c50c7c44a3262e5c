# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""The nodes of a sub-topology in one task. A record goes through them depth first: nodes call each other in C.

Every operator can be a node that calls Python (PythonNode); those that are hot are compiled. docs/nodes.md explains it.
"""

cimport cython
from libc.stdint cimport INT64_MAX, int32_t, int64_t

from penstock.kernel.cells cimport CellTable, CellUpdates, TimeWindows
from penstock.kernel import cells
from penstock.kernel.codecs cimport Rewriter
from penstock.kernel.messages cimport Message
from penstock.kernel.messages import DECODE_TEXT
from penstock.kernel.named_tuples cimport tuple_of_four, tuple_of_three, tuple_of_two
from penstock.kernel.rows cimport RowBuffer, timed
from penstock.kernel.sinks cimport Changelog, PARTITIONER_DECIDES, RecordSink, WindowedSink

cdef extern from *:
    """
    /* Whether an object is an int of 0 to 2**63 - 1. */
    static inline int is_timestamp(PyObject *number) {
        int overflow;
        return PyLong_CheckExact(number) && PyLong_AsLongLongAndOverflow(number, &overflow) >= 0;  // else -1
    }
    """
    bint is_timestamp(object)

cdef object NOT_CACHED = cells.NOT_CACHED
cdef type CHANGE = None
cdef type WINDOWED = None


def set_types(type change not None, type windowed not None):
    """Set the types of a table's changes and of windowed keys: topology/context/task_context.py does."""
    global CHANGE, WINDOWED
    CHANGE, WINDOWED = change, windowed


cdef class RecordContext:
    """The record at work in a task; see TaskContext for what it means.

    at: the name of the node at work, which an error names. tracer: gets enter(name, timestamp) and leave() of each node
    while records are traced; None otherwise. written_…: the last value that a node has serialized or read, its serde and
    its bytes (None if it was read), until user code has seen it.
    """

    def __cinit__(self):
        self.timestamp = self.stream_time_ms = -1


# -- keys

cdef enum:  # what nodes do with keys, in bits
    NEEDS_BYTES = 1
    READS = 2

cdef enum:  # of the keys of a cache
    PLAIN
    WINDOW
    SESSION


@cython.final
cdef class KeyReader:
    """What has to be known of keys that are still bytes. serde: which has written them. decode: for bytes (not None)."""

    cdef readonly object serde, decode

    def __init__(self, serde, decode):
        self.serde = serde
        self.decode = decode


@cython.final
@cython.freelist(64)
cdef class Key:
    """A record's key as its serde writes it, until someone looks. In a window the bytes are those of the key inside."""

    cdef bytes data
    cdef bint is_read, is_windowed
    cdef int64_t start, end
    cdef object value
    cdef KeyReader reader

    cdef object read(self):
        if not self.is_read:
            self.value = self.reader.decode(self.data)
            if self.is_windowed:
                self.value = tuple_of_three(WINDOWED, self.value, self.start, self.end)
            self.is_read = True
        return self.value

    cdef object held(self):
        """Return a windowed key whose inner key is bytes."""
        return tuple_of_three(WINDOWED, self.data, self.start, self.end)


cdef inline Key key_from(bytes data, KeyReader reader):
    cdef Key key = Key.__new__(Key)
    key.data, key.reader = data, reader
    return key


cdef inline object key_of(object key):
    """Return the key itself."""
    return (<Key>key).read() if type(key) is Key else key


cdef inline bint is_of(object key, object serde):
    """Return whether a key has the bytes that a serde writes."""
    return type(key) is Key and (<Key>key).reader.serde is serde and not (<Key>key).is_windowed


cdef inline object written_data_of(RecordContext task, object value, object serde):
    """Return the bytes that a serde has just written for a value that no user code has seen since, None if there are none."""
    if value is None or value is not task.written_value or task.written_serde is not serde:
        return None
    return task.written_data


cdef inline tuple fields_of(object found):
    """Return a named tuple as a tuple."""
    if not isinstance(found, tuple):
        raise TypeError(f"a named tuple is needed, not {found!r}")
    return <tuple>found


# -- nodes

cdef class Node:
    """A node. name: None for nodes that only serve others. child: the node after it."""

    def __init__(self, RecordContext task not None, name, Node child=None):
        self.task = task
        self.name = name
        self.child = END if child is None else child

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        """Process a record."""
        raise NotImplementedError

    cdef int change(self, key, new, old, bint is_latest, int64_t timestamp, headers) except -1:
        """Process a change of a table's row."""
        return self.process(key, tuple_of_three(CHANGE, new, old, is_latest), timestamp, headers)

    cpdef int use_of_key(self, serde) except -1:
        """Return how this node and those after it use a record's key: bits. serde: of the bytes that they can get."""
        return READS

    cpdef dict known_keys(self, serde):
        """Return a dict whose keys are keys as this serde has written them, None if there is none."""
        return None

    def receive(self, key, value, int64_t timestamp, headers):
        """Process a record that comes from a Python function of the same node."""
        self.process(key, value, timestamp, headers)


cdef class End(Node):
    """After the last node."""

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        return 0

    cdef int change(self, key, new, old, bint is_latest, int64_t timestamp, headers) except -1:
        return 0

    cpdef int use_of_key(self, serde) except -1:
        return 0


cdef End END = End.__new__(End)


cdef int traced(Node to, tracer, key, value, int64_t timestamp, headers) except -1:
    if to.name is None:
        return to.process(key, value, timestamp, headers)
    tracer.enter(to.name, timestamp)
    try:
        return to.process(key, value, timestamp, headers)
    finally:
        tracer.leave()


cdef inline int deliver(Node to, key, value, int64_t timestamp, headers) except -1:
    """Let a node process a record."""
    if to.task is None or to.task.tracer is None:
        return to.process(key, value, timestamp, headers)
    return traced(to, to.task.tracer, key, value, timestamp, headers)


cdef int traced_change(Node to, tracer, key, new, old, bint is_latest, int64_t timestamp, headers) except -1:
    if to.name is None:
        return to.change(key, new, old, is_latest, timestamp, headers)
    tracer.enter(to.name, timestamp)
    try:
        return to.change(key, new, old, is_latest, timestamp, headers)
    finally:
        tracer.leave()


cdef inline int deliver_change(Node to, key, new, old, bint is_latest, int64_t timestamp, headers) except -1:
    """Let a node process a change."""
    if to.task is None or to.task.tracer is None:
        return to.change(key, new, old, is_latest, timestamp, headers)
    return traced_change(to, to.task.tracer, key, new, old, is_latest, timestamp, headers)


@cython.final
cdef class Fork(Node):
    """Passes records on to several nodes, in order. They share the value, so it counts as seen by user code."""

    cdef tuple nodes

    def __init__(self, RecordContext task not None, nodes):
        self.task = task
        self.nodes = tuple(nodes)

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        for node in self.nodes:
            self.task.written_value = None
            deliver(<Node?>node, key, value, timestamp, headers)
        return 0

    cdef int change(self, key, new, old, bint is_latest, int64_t timestamp, headers) except -1:
        for node in self.nodes:
            self.task.written_value = None
            deliver_change(<Node?>node, key, new, old, is_latest, timestamp, headers)
        return 0

    cpdef int use_of_key(self, serde) except -1:
        cdef int use = 0
        for node in self.nodes:
            use |= (<Node?>node).use_of_key(serde)
        return use


def only_bytes(Node node not None, serde):
    """Return whether a node and those after it need no more of a record's key than its bytes, as serde writes them."""
    return node.use_of_key(serde) == NEEDS_BYTES


def node_of(RecordContext task not None, nodes):
    """Return one node for several."""
    return END if not nodes else nodes[0] if len(nodes) == 1 else Fork(task, nodes)


@cython.final
cdef class PythonNode(Node):
    """Calls a function (key, value, timestamp, headers)."""

    cdef object function

    def __init__(self, RecordContext task not None, name, function):
        Node.__init__(self, task, name)
        self.function = function

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        self.task.at = self.name
        self.task.written_value = None
        self.function(key_of(key), value, timestamp, headers)
        return 0


@cython.final
cdef class Forward:
    """What a Python function calls to pass a record on. name: of the node that it belongs to."""

    cdef RecordContext task
    cdef object name
    cdef Node child

    def __init__(self, RecordContext task not None, name, Node child not None):
        self.task = task
        self.name = name
        self.child = child

    def call(self, key, value, int64_t timestamp, headers):
        """Pass a record on."""
        deliver(self.child, key, value, timestamp, headers)
        self.task.at = self.name


@cython.final
cdef class RecordForward:
    """The forward of a ProcessorContext. forward_any: the same, for unusual records and with a child's name."""

    cdef RecordContext task
    cdef object name, forward_any
    cdef Node child
    cdef type record

    def __init__(self, RecordContext task not None, name, Node child not None, type record not None, forward_any):
        self.task, self.name, self.child = task, name, child
        self.record, self.forward_any = record, forward_any

    def call(self, given, child=None):
        """Pass a record on."""
        cdef RecordContext task = self.task
        cdef tuple fields
        cdef int64_t timestamp
        if child is not None or not isinstance(given, self.record) or not is_timestamp((<tuple>given)[2]):
            self.forward_any(given, child)
            return
        fields = <tuple>given
        timestamp, headers = task.timestamp, task.headers
        deliver(self.child, fields[0], fields[1], fields[2], fields[3])
        task.timestamp, task.headers, task.at = timestamp, headers, self.name


@cython.final
cdef class Guard(Node):
    """Lets judge(name, key, value, timestamp, headers, error) decide what an exception of a node means.

    unhandled: the exceptions that it does not judge.
    """

    cdef object judge, unhandled

    def __init__(self, Node node not None, judge, unhandled):
        self.task, self.name, self.child = node.task, node.name, node
        self.judge = judge
        self.unhandled = unhandled

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        try:
            self.child.process(key, value, timestamp, headers)
        except self.unhandled:
            raise
        except Exception as error:
            self.judge(self.name, key_of(key), value, timestamp, headers, error)
        return 0

    cdef int change(self, key, new, old, bint is_latest, int64_t timestamp, headers) except -1:
        try:
            self.child.change(key, new, old, is_latest, timestamp, headers)
        except self.unhandled:
            raise
        except Exception as error:
            value = tuple_of_three(CHANGE, new, old, is_latest)
            self.judge(self.name, key_of(key), value, timestamp, headers, error)
        return 0

    cpdef int use_of_key(self, serde) except -1:
        return self.child.use_of_key(serde)

    cpdef dict known_keys(self, serde):
        return self.child.known_keys(serde)


# -- stateless operators

cdef class FunctionNode(Node):
    """Base of nodes that call a user's function. with_key: whether it gets the key, too."""

    cdef object function
    cdef bint with_key

    def __init__(self, RecordContext task not None, name, Node child, function, bint with_key=True):
        Node.__init__(self, task, name, child)
        self.function = function
        self.with_key = with_key

    cdef object call(self, key, value):
        self.task.at = self.name
        self.task.written_value = None
        return self.function(key, value) if self.with_key else self.function(value)

    cpdef int use_of_key(self, serde) except -1:
        return READS if self.with_key else self.child.use_of_key(serde)

    cpdef dict known_keys(self, serde):
        return self.child.known_keys(serde)


@cython.final
cdef class Filter(FunctionNode):
    """Passes on what a predicate is true for, or with negated false."""

    cdef bint negated

    def __init__(self, task, name, child, predicate, bint negated):
        FunctionNode.__init__(self, task, name, child, predicate)
        self.negated = negated

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        key = key_of(key)
        if bool(self.call(key, value)) != self.negated:
            deliver(self.child, key, value, timestamp, headers)
        return 0


@cython.final
cdef class Map(FunctionNode):
    """Replaces key and value. check(name, found): raises unless a function's result is a pair."""

    cdef object check

    def __init__(self, task, name, child, mapper, check):
        FunctionNode.__init__(self, task, name, child, mapper)
        self.check = check

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        pair = self.call(key_of(key), value)
        if type(pair) is not tuple or len(<tuple>pair) != 2:
            self.check(self.name, pair)
        new_key, new_value = pair
        return deliver(self.child, new_key, new_value, timestamp, headers)


@cython.final
cdef class SelectKey(FunctionNode):
    """Replaces the key."""

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        return deliver(self.child, self.call(key_of(key), value), value, timestamp, headers)


@cython.final
cdef class MapValues(FunctionNode):
    """Replaces the value."""

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        if self.with_key:
            key = key_of(key)
        return deliver(self.child, key, self.call(key, value), timestamp, headers)


@cython.final
cdef class FlatMap(FunctionNode):
    """Replaces a record by any number of records. iterate(name, found): returns what iterates over the results."""

    cdef object iterate, check

    def __init__(self, task, name, child, mapper, iterate, check):
        FunctionNode.__init__(self, task, name, child, mapper)
        self.iterate = iterate
        self.check = check

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        for pair in self.iterate(self.name, self.call(key_of(key), value)):
            if type(pair) is not tuple or len(<tuple>pair) != 2:
                self.check(self.name, pair)
            new_key, new_value = pair
            deliver(self.child, new_key, new_value, timestamp, headers)
            self.task.at = self.name
        return 0


@cython.final
cdef class FlatMapValues(FunctionNode):
    """Replaces a value by any number of values. iterate: as in FlatMap."""

    cdef object iterate

    def __init__(self, task, name, child, mapper, bint with_key, iterate):
        FunctionNode.__init__(self, task, name, child, mapper, with_key)
        self.iterate = iterate

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        if self.with_key:
            key = key_of(key)
        for found in self.iterate(self.name, self.call(key, value)):
            deliver(self.child, key, found, timestamp, headers)
            self.task.at = self.name
        return 0


@cython.final
cdef class Peek(FunctionNode):
    """Calls a function and passes the record on."""

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        key = key_of(key)
        self.call(key, value)
        return deliver(self.child, key, value, timestamp, headers)


@cython.final
cdef class Branch(Node):
    """Passes a record on to the node of the first predicate that is true, or to the last node, which may be None."""

    cdef tuple predicates, nodes

    def __init__(self, task, name, predicates, nodes):
        Node.__init__(self, task, name)
        self.predicates, self.nodes = tuple(predicates), tuple(nodes)

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        cdef Py_ssize_t i
        key = key_of(key)
        self.task.at = self.name
        self.task.written_value = None
        for i in range(len(self.predicates)):
            if self.predicates[i](key, value):
                return deliver(<Node?>self.nodes[i], key, value, timestamp, headers)
        if len(self.nodes) > len(self.predicates):
            deliver(<Node?>self.nodes[len(self.predicates)], key, value, timestamp, headers)
        return 0


@cython.final
cdef class ToStream(Node):
    """Passes the new values of a table on."""

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        return deliver(self.child, key, fields_of(value)[0], timestamp, headers)

    cdef int change(self, key, new, old, bint is_latest, int64_t timestamp, headers) except -1:
        return deliver(self.child, key, new, timestamp, headers)

    cpdef int use_of_key(self, serde) except -1:
        return self.child.use_of_key(serde)


@cython.final
cdef class UserProcessor(Node):
    """Calls a user's processor. record: the type of its records."""

    cdef object process_record
    cdef type record

    def __init__(self, task, name, process_record, type record not None):
        Node.__init__(self, task, name)
        self.process_record = process_record
        self.record = record

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        cdef RecordContext task = self.task
        # Rows that the processor puts into its stores take the timestamp and headers of its input record.
        task.timestamp = timestamp
        task.headers = headers
        task.at = self.name
        task.written_value = None
        self.process_record(tuple_of_four(self.record, key_of(key), value, timestamp, headers))
        return 0


# -- sinks

@cython.final
cdef class Sink(Node):
    """Writes to a topic whose partitions the producer chooses. unsent(key, value, timestamp, headers, error) judges."""

    cdef RecordSink sink
    cdef object key_serde, value_serde, unsent

    def __init__(self, task, name, RecordSink sink not None, key_serde, value_serde, unsent):
        Node.__init__(self, task, name)
        self.sink = sink
        self.key_serde, self.value_serde = key_serde, value_serde
        self.unsent = unsent

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        cdef RecordContext task = self.task
        cdef bint has_bytes = is_of(key, self.key_serde)
        task.at = self.name
        given = (<Key>key).data if has_bytes else key_of(key)
        data = written_data_of(task, value, self.value_serde)
        given_value = value if data is None else data
        error = self.sink.put(given, has_bytes, given_value, data is not None, timestamp, headers, PARTITIONER_DECIDES)
        if error is not None:
            self.unsent(key_of(key), value, timestamp, headers, error)
        return 0

    cpdef int use_of_key(self, serde) except -1:
        return NEEDS_BYTES if serde is self.key_serde else READS


@cython.final
cdef class PartitionedSink(Node):
    """Writes to a topic with a partitioner: partitioner(topic, key, value, count) -> partition, None or several.

    place: the field of the value that is the partition, instead. send_to(chosen, key, value, timestamp, headers): for
    several.
    """

    cdef RecordSink sink
    cdef str topic
    cdef object key_serde, unsent, partitioner, place, partition_count, send_to

    def __init__(self, task, name, RecordSink sink not None, str topic, key_serde, unsent, partitioner, place,
                 partition_count, send_to):
        Node.__init__(self, task, name)
        self.sink, self.topic, self.key_serde, self.unsent = sink, topic, key_serde, unsent
        self.partitioner, self.place, self.partition_count, self.send_to = partitioner, place, partition_count, send_to

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        self.task.at = self.name
        self.task.written_value = None
        if self.place is not None:
            chosen = fields_of(value)[self.place]
        else:
            chosen = self.partitioner(self.topic, key_of(key), value, self.partition_count())
        if chosen is not None and type(chosen) is not int:
            error = self.send_to(chosen, key_of(key), value, timestamp, headers)
        else:
            partition = PARTITIONER_DECIDES if chosen is None else chosen
            if is_of(key, self.key_serde):
                error = self.sink.put((<Key>key).data, True, value, False, timestamp, headers, partition)
            else:
                error = self.sink.put(key_of(key), False, value, False, timestamp, headers, partition)
        if error is not None:
            self.unsent(key_of(key), value, timestamp, headers, error)
        return 0

    cpdef int use_of_key(self, serde) except -1:
        return READS if self.place is None or serde is not self.key_serde else NEEDS_BYTES


@cython.final
cdef class WindowedKeySink(Node):
    """Writes to a topic records with windowed keys, whose partition is that of the key inside.

    inner: the serde of that. from_held: the function that writes a windowed key whose inner key is bytes.
    """

    cdef WindowedSink sink
    cdef object inner, value_serde, from_held, partition_count, unsent

    def __init__(self, task, name, WindowedSink sink not None, inner, from_held, value_serde, partition_count, unsent):
        Node.__init__(self, task, name)
        self.sink = sink
        self.inner, self.value_serde = inner, value_serde
        self.from_held, self.partition_count, self.unsent = from_held, partition_count, unsent

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        cdef RecordContext task = self.task
        task.at = self.name
        cdef bint has_bytes = type(key) is Key and (<Key>key).is_windowed and (<Key>key).reader.serde is self.inner
        given = self.from_held((<Key>key).held()) if has_bytes else key_of(key)
        cdef int32_t partitions = self.partition_count()
        data = written_data_of(task, value, self.value_serde)
        given_value = value if data is None else data
        error = self.sink.put(given, has_bytes, given_value, data is not None, timestamp, headers, partitions)
        if error is not None:
            self.unsent(key_of(key), value, timestamp, headers, error)
        return 0


# -- rows of tables

cdef class Rows:
    """The rows of a table's key-value store, for the updates of one node."""

    cdef RecordContext task
    cdef readonly object key_serde
    cdef object encode_key

    cdef inline bytes key_bytes(self, key):
        if is_of(key, self.key_serde):
            return (<Key>key).data
        key = key_of(key)
        return key if self.encode_key is None else self.encode_key(key)

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

    cdef readonly CellUpdates updates
    cdef object grown
    cdef bint keeps_messages

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

    cdef inline object source(self):
        return self.task.message if self.keeps_messages else None

    cdef int count(self, Node node, key, int64_t timestamp, headers) except -1:
        if self.updates.count(self.key_bytes(key), timestamp, headers, self.source()):
            self.grow(timestamp, headers)
        return 0

    cdef int aggregate(self, Node node, initializer, aggregator, key, value, int64_t timestamp, headers) except -1:
        cache_key, given = self.key_bytes(key), key_of(key)
        if self.updates.aggregate(initializer, aggregator, cache_key, given, value, timestamp, headers, self.source()):
            self.grow(timestamp, headers)
        return 0

    cdef int reduce(self, Node node, reducer, key, value, int64_t timestamp, headers) except -1:
        if self.updates.reduce(reducer, self.key_bytes(key), value, timestamp, headers, self.source()):
            self.grow(timestamp, headers)
        return 0

    cdef int replace(self, Node node, key, value, int64_t timestamp, headers) except -1:
        if self.updates.replace(self.key_bytes(key), value, timestamp, headers, self.source()):
            self.grow(timestamp, headers)
        return 0

    cdef int grow(self, int64_t timestamp, headers) except -1:
        self.task.timestamp = timestamp
        self.task.headers = headers
        self.grown()
        return 0


@cython.final
cdef class StoredRows(Rows):
    """Rows in a store without a cache, written at once; the change goes on with the timestamp of the row.

    encode, decode: of values that are not None; exact, exact_type: see Serde. log_value_headers, log_tombstone_headers:
    whether the changelog gets headers. sends_old: whether the old value goes on, too.
    """

    cdef RowBuffer buffer
    cdef Changelog changelog
    cdef object encode, decode, exact, exact_type, value_serde
    cdef bint log_value_headers, log_tombstone_headers, sends_old, is_plain

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

    cdef object decoded(self, row):
        return row if self.decode is None else self.decode(row)

    cdef int count(self, Node node, key, int64_t timestamp, headers) except -1:
        cdef bytes row_key = self.key_bytes(key)
        row = self.buffer.find(row_key)
        cdef int64_t newest = timestamp
        if row is None:
            new = 1
        else:
            new = self.decoded(row) + 1
            newest = max(timestamp, self.buffer.row_time)
        return self.put(node, key, row_key, new, None, timestamp, newest, headers, self.exact_type is int)

    cdef int aggregate(self, Node node, initializer, aggregator, key, value, int64_t timestamp, headers) except -1:
        cdef bytes row_key = self.key_bytes(key)
        row = self.buffer.find(row_key)
        cdef int64_t newest = timestamp
        if row is None:
            old = initializer()
        else:
            old = self.decoded(row)
            newest = max(timestamp, self.buffer.row_time)
        key = key_of(key)
        return self.put(node, key, row_key, aggregator(key, value, old), None, timestamp, newest, headers, False)

    cdef int reduce(self, Node node, reducer, key, value, int64_t timestamp, headers) except -1:
        cdef bytes row_key = self.key_bytes(key)
        row = self.buffer.find(row_key)
        cdef int64_t newest = timestamp
        if row is not None:
            newest = max(timestamp, self.buffer.row_time)
            value = reducer(self.decoded(row), value)
        return self.put(node, key, row_key, value, None, timestamp, newest, headers, False)

    cdef int replace(self, Node node, key, value, int64_t timestamp, headers) except -1:
        cdef bytes row_key = self.key_bytes(key)
        old = None
        if self.sends_old:
            row = self.buffer.find(row_key)
            if row is not None:
                old = self.decoded(row)
        # A value that its own serde has just read would be read back unchanged.
        cdef RecordContext task = self.task
        cdef bint is_read = value is task.written_value and task.written_serde is self.value_serde and self.is_plain
        return self.put(node, key, row_key, value, old, timestamp, timestamp, headers, is_read)

    cdef int write_bytes(self, bytes row_key, data, int64_t timestamp, headers) except -1:
        if not self.log_value_headers and not (self.log_tombstone_headers and data is None):
            headers = None
        self.changelog.write(row_key, data, timestamp, headers)
        self.buffer.set(row_key, None if data is None else timed(timestamp, <bytes?>data))
        return 0

    cdef int put(
        self, Node node, key, bytes row_key, new, old, int64_t timestamp, int64_t newest, headers, bint as_it_is
    ) except -1:
        """Write a row and pass the change on. as_it_is: the store would read the value back unchanged."""
        cdef RecordContext task = self.task
        data = None
        if new is not None:
            if self.exact is not None and not as_it_is and type(new) is not self.exact_type:
                new = self.exact(new)
            data = new if self.encode is None else self.encode(new)
            if self.exact is None and not as_it_is and node.child is not END:
                new = self.decoded(data)
        task.timestamp = timestamp
        task.headers = headers
        self.write_bytes(row_key, data, timestamp if data is None else newest, headers)
        if node.child is END:
            return 0
        if self.is_plain and new is not None:
            task.written_value, task.written_serde, task.written_data = new, self.value_serde, data
        deliver_change(node.child, key, new, old if self.sends_old else None, True, newest, headers)
        task.at = node.name
        return 0

    def write(self, bytes row_key not None, value, int64_t timestamp, headers):
        """Write a row, None to delete it; nothing goes on."""
        data = value if value is None or self.encode is None else self.encode(value)
        self.write_bytes(row_key, data, timestamp, headers)

    cdef int use_of_key(self, Node node, serde) except -1:
        return (NEEDS_BYTES if serde is self.key_serde else READS) | node.child.use_of_key(serde)


# -- operators on rows

cdef class RowNode(Node):
    """Base of nodes that update rows. dropped(reason): counts a record that is not used."""

    cdef Rows rows
    cdef object dropped

    def __init__(self, task, name, child, Rows rows, dropped):
        Node.__init__(self, task, name, child)
        self.rows, self.dropped = rows, dropped

    cpdef dict known_keys(self, serde):
        if type(self.rows) is CachedRows and self.rows.key_serde is serde:
            return (<CachedRows>self.rows).updates.table.entries
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
        return READS | RowNode.use_of_key(self, serde)


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
    """Aggregates the changes of a grouped table: changed(key, change, old). no_key(): raises."""

    cdef object changed, no_key

    def __init__(self, task, name, child, Rows rows not None, changed, no_key):
        RowNode.__init__(self, task, name, child, rows, None)
        self.changed, self.no_key = changed, no_key

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        self.task.at = self.name
        if key is None:
            self.no_key()
        return self.rows.aggregate(self, nothing, self.changed, key, value, timestamp, headers)

    cpdef int use_of_key(self, serde) except -1:
        return READS | RowNode.use_of_key(self, serde)


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
cdef class WindowAggregate(RowNode):
    """Aggregates the values of each key and window in a cache. initializer None: aggregator is a reducer."""

    cdef TimeWindows windows
    cdef object initializer, aggregator
    cdef bint counts

    def __init__(self, task, name, CachedRows rows not None, dropped, TimeWindows windows not None, initializer, aggregator,
                 bint counts):
        RowNode.__init__(self, task, name, None, rows, dropped)
        self.windows = windows
        self.initializer, self.aggregator, self.counts = initializer, aggregator, counts

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        cdef CachedRows rows = <CachedRows>self.rows
        cdef bint grew
        self.task.at = self.name
        if key is None:
            self.dropped("null key")
            return 0
        cache_keys = self.windows.cache_keys(rows.key_bytes(key), timestamp)
        given = None if self.counts or self.initializer is None else key_of(key)
        for cache_key in cache_keys:
            if cache_key is None:
                self.dropped("expired window")
                continue
            if self.counts:
                grew = rows.updates.count(cache_key, timestamp, headers, rows.source())
            elif self.initializer is None:
                grew = rows.updates.reduce(self.aggregator, cache_key, value, timestamp, headers, rows.source())
            else:
                grew = rows.updates.aggregate(
                    self.initializer, self.aggregator, cache_key, given, value, timestamp, headers, rows.source()
                )
            if grew:
                rows.grow(timestamp, headers)
                self.task.at = self.name
        return 0

    cpdef dict known_keys(self, serde):
        return None

    cpdef int use_of_key(self, serde) except -1:
        return RowNode.use_of_key(self, serde) | (0 if self.counts or self.initializer is None else READS)


@cython.final
cdef class StreamTableJoin(Node):
    """Joins a record with its key's row: joiner(left, right), or (key, left, right) with with_key.

    get(key): reads a row, as_of get(key, timestamp). table: of the cache to look in before, or None; key_serde, encode_key,
    read: of its entries, see Cells. dropped: see RowNode.
    """

    cdef object joiner, dropped, get, key_serde, encode_key, read
    cdef bint with_key, left_join, as_of
    cdef CellTable table

    def __init__(self, task, name, child, joiner, bint with_key, bint left_join, dropped, get, bint as_of, CellTable table=None,
                 key_serde=None, encode_key=None, read=None):
        Node.__init__(self, task, name, child)
        self.joiner, self.with_key, self.left_join, self.dropped = joiner, with_key, left_join, dropped
        self.get, self.as_of = get, as_of
        self.table, self.key_serde, self.encode_key, self.read = table, key_serde, encode_key, read

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        cdef RecordContext task = self.task
        row = right = None
        task.at = self.name
        if value is None or (key is None and not self.left_join):
            self.dropped("null join key or value")
            return 0
        if key is not None:
            if self.table is not None:
                if is_of(key, self.key_serde):
                    row = self.table.read(<object>(<Key>key).data)
                else:
                    found = key_of(key)
                    row = self.table.read(found if self.encode_key is None else self.encode_key(found))
            if self.table is None or row is NOT_CACHED:
                row = self.get(key_of(key), timestamp) if self.as_of else self.get(key_of(key))
                right = None if row is None else row[0]
            elif row is not None:
                right = fields_of(row)[0]
                if self.read is not None:
                    right = self.read(right)
        if row is None and not self.left_join:
            return 0
        task.written_value = None
        joined = self.joiner(key_of(key), value, right) if self.with_key else self.joiner(value, right)
        return deliver(self.child, key, joined, timestamp, headers)

    cpdef int use_of_key(self, serde) except -1:
        cdef int use = self.child.use_of_key(serde) | (READS if self.with_key else 0)
        return use | (NEEDS_BYTES if self.table is not None and serde is self.key_serde else READS)

    cpdef dict known_keys(self, serde):
        return self.table.entries if self.table is not None and serde is self.key_serde else None


@cython.final
cdef class RepartitionMap(Node):
    """Maps the old and the new value of a change to groups. pair_of(key, value): a pair, None if a part of it is None.

    combined: whether a change within a group is one record. skips_older: whether changes that are not the latest are
    left out. no_key(): raises.
    """

    cdef object pair_of, no_key
    cdef bint combined, skips_older

    def __init__(self, task, name, child, pair_of, no_key, bint combined, bint skips_older):
        Node.__init__(self, task, name, child)
        self.pair_of, self.no_key = pair_of, no_key
        self.combined, self.skips_older = combined, skips_older

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        new, old, is_latest = value
        return self.change(key, new, old, is_latest, timestamp, headers)

    cdef int change(self, key, new, old, bint is_latest, int64_t timestamp, headers) except -1:
        added = removed = None
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


@cython.final
cdef class SubscriptionSend(Node):
    """Subscribes left rows of a foreign-key join under their foreign keys; see SubscriptionSendProcessor.

    extract(value), or (key, value) with with_key: a foreign key. to_bytes: of foreign keys. asks: the instruction where
    the foreign key stays. steps_for(old foreign key, new one, whether there is a row): for all other changes. hash_of(value),
    hash_bytes(its bytes as serde writes them). subscribe(hash, instruction, key, partition). refuse(): raises for a record
    of no topic. skips_older, dropped: as in other nodes.
    """

    cdef object extract, to_bytes, asks, steps_for, hash_of, hash_bytes, serde, subscribe, refuse, dropped
    cdef bint with_key, skips_older

    def __init__(self, task, name, child, extract, bint with_key, to_bytes, asks, steps_for, hash_of, hash_bytes, serde,
                 subscribe, refuse, dropped, bint skips_older):
        Node.__init__(self, task, name, child)
        self.extract, self.with_key, self.to_bytes = extract, with_key, to_bytes
        self.asks, self.steps_for = asks, steps_for
        self.hash_of, self.hash_bytes, self.serde = hash_of, hash_bytes, serde
        self.subscribe, self.refuse, self.dropped, self.skips_older = subscribe, refuse, dropped, skips_older

    cdef object foreign_key(self, key, value):
        if value is None:
            return None
        return self.extract(key, value) if self.with_key else self.extract(value)

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        new, old, is_latest = value
        return self.change(key, new, old, is_latest, timestamp, headers)

    cdef int change(self, key, new, old, bint is_latest, int64_t timestamp, headers) except -1:
        cdef RecordContext task = self.task
        task.at = self.name
        if self.skips_older and not is_latest:
            self.dropped("out-of-order record of a versioned table")
            return 0
        if new is None and old is None:
            return 0
        data = written_data_of(task, new, self.serde)
        task.written_value = None
        key = key_of(key)
        before, after = self.foreign_key(key, old), self.foreign_key(key, new)
        stays = after is not None and (before is None or self.to_bytes(before) == self.to_bytes(after))
        steps = ((after, self.asks),) if stays else self.steps_for(before, after, new is not None)
        if not steps:
            return 0
        partition = self.refuse() if task.message is None else task.message.partition()
        value_hash = None if new is None else self.hash_of(new) if data is None else self.hash_bytes(data)
        for foreign_key, instruction in steps:
            deliver(self.child, foreign_key, self.subscribe(value_hash, instruction, key, partition), timestamp, headers)
            task.at = self.name
        return 0


cdef enum:  # of a subscription: Instruction, in foreign_key_serdes.py
    DELETE_ONLY
    DELETE
    ALWAYS
    IF_FOUND

cdef enum:  # the highest versions that are known
    SUBSCRIPTION_VERSION = 1
    RESPONSE_VERSION = 0


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
cdef class SubscriptionJoin(Node):
    """Responds to a new subscription with the row of the right table; see SubscriptionJoinProcessor.

    get(foreign key): a row (value, timestamp). buffer: where values are found that need not be read, for keys from
    encode_key, and go on as serialized; None if there are none. response: the type of responses.
    """

    cdef object get, encode_key
    cdef RowBuffer buffer
    cdef type serialized, response

    def __init__(self, task, name, child, get, RowBuffer buffer, encode_key, type serialized, type response):
        Node.__init__(self, task, name, child)
        self.get, self.buffer, self.encode_key = get, buffer, encode_key
        self.serialized, self.response = serialized, response

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        new, old, is_latest = value
        return self.change(key, new, old, is_latest, timestamp, headers)

    cdef int change(self, key, new, old, bint is_latest, int64_t timestamp, headers) except -1:
        cdef tuple keys = fields_of(key), row = fields_of(new), subscription = fields_of(row[0])
        cdef int instruction = subscription[1]
        cdef int64_t newest = row[1], found
        self.task.at = self.name
        value = None
        cdef bint is_found = False
        if keys[0] is not None:
            if self.buffer is not None:
                data = self.buffer.find(keys[0] if self.encode_key is None else self.encode_key(keys[0]))
                if data is not None:
                    is_found, found = True, self.buffer.row_time
                    value = self.serialized(data)
            else:
                right = self.get(keys[0])
                if right is not None:
                    is_found, value, found = True, right[0], right[1]
            if is_found:
                newest = max(newest, found)
        if instruction == DELETE_ONLY or (instruction == IF_FOUND and not is_found):
            return 0
        if instruction == DELETE:
            value = None
        answer = tuple_of_four(self.response, subscription[0], value, subscription[3], RESPONSE_VERSION)
        return deliver(self.child, keys[1], answer, newest, headers)


@cython.final
cdef class Suppress(Node):
    """Makes the rows of a buffer: put(row key, buffer time, new, old, timestamp, headers).

    until_close: whether the buffer time is the end of the window. inner: the serde of a windowed key's inner key;
    from_held: see WindowedKeySink. encode_key: for any key.
    """

    cdef object put, key_serde, inner, from_held, encode_key
    cdef bint until_close

    def __init__(self, task, name, put, bint until_close, key_serde, inner, from_held, encode_key):
        Node.__init__(self, task, name)
        self.put, self.until_close = put, until_close
        self.key_serde, self.inner, self.from_held, self.encode_key = key_serde, inner, from_held, encode_key

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        new, old, is_latest = value
        return self.change(key, new, old, is_latest, timestamp, headers)

    cdef int change(self, key, new, old, bint is_latest, int64_t timestamp, headers) except -1:
        cdef Key unread
        self.task.at = self.name
        if type(key) is Key:
            unread = <Key>key
            if unread.is_windowed and unread.reader.serde is self.inner:
                time = unread.end if self.until_close else timestamp
                self.put(self.from_held(unread.held()), time, new, old, timestamp, headers)
                return 0
            if not unread.is_windowed and unread.reader.serde is self.key_serde and not self.until_close:
                self.put(unread.data, timestamp, new, old, timestamp, headers)
                return 0
        key = key_of(key)
        self.put(self.encode_key(key), key[2] if self.until_close else timestamp, new, old, timestamp, headers)
        return 0


@cython.final
cdef class FlushedChanges:
    """Passes the changes of a cached table on when the cache is flushed; see StateStore.send_changes.

    form: of the cache's keys, see the enum; size_ms: of windows. read(held value): None where it is the value itself.
    bytes_serde: see Cells. timestamped: whether a row is (value, timestamp). headers: whether they go on.
    """

    cdef RecordContext task
    cdef object name
    cdef Node child
    cdef KeyReader reader
    cdef int form
    cdef int64_t size_ms
    cdef object read, bytes_serde
    cdef bint timestamped, keeps_headers

    def __init__(self, RecordContext task not None, name, Node child not None, key_serde, decode_key, int form, int64_t size_ms,
                 read, bytes_serde, bint timestamped, bint keeps_headers):
        self.task, self.name, self.child = task, name, child
        self.reader = KeyReader(key_serde, decode_key)
        self.form, self.size_ms = form, size_ms
        self.read, self.bytes_serde = read, bytes_serde
        self.timestamped, self.keeps_headers = timestamped, keeps_headers

    cdef Key key(self, cache_key):
        cdef Key key
        cdef tuple parts
        if self.form == PLAIN:
            return key_from(<bytes?>cache_key, self.reader)
        parts = <tuple?>cache_key
        key = key_from(<bytes?>parts[0], self.reader)
        key.is_windowed = True
        if self.form == WINDOW:
            key.start = parts[1]
            key.end = key.start + self.size_ms if key.start <= INT64_MAX - self.size_ms else INT64_MAX
        else:
            key.start, key.end = parts[2], parts[1]
        return key

    def send(self, changes, olds):
        """Pass the changes of a flush on; olds: the rows before, None for those that are not asked for."""
        cdef RecordContext task = self.task
        cdef int64_t at
        cdef Key key
        at_before = task.at
        if task.tracer is not None:
            task.tracer.begin(self.name)
        for change, old in zip(changes, olds):
            cache_key, row, timestamp, headers, message = <tuple?>change
            at = timestamp
            task.at = self.name
            task.timestamp, task.headers, task.message = at, headers, message
            key = self.key(cache_key)
            held = None
            if self.timestamped:
                if row is not None:
                    held, row_time = row
                    at = row_time
                if old is not None:
                    old = old[0]
            else:
                held = row
                if self.form == SESSION:
                    at = key.end
                if not self.keeps_headers:
                    headers = None
            new = held if held is None or self.read is None else self.read(held)
            if old is not None and self.read is not None:
                old = self.read(old)
            if self.bytes_serde is not None:
                task.written_value, task.written_serde, task.written_data = new, self.bytes_serde, held
            else:
                task.written_value = None
            deliver_change(self.child, key, new, old, True, at, headers)
        task.at = at_before


# -- sources

@cython.final
cdef class Source(Node):
    """The source of one topic.

    to_key, to_value: read bytes; keys_may_be_none, values_may_be_none: whether they are called for None, too. A Rewriter
    as to_key leaves keys as bytes; reader: for these. failed(message, key, timestamp, error): raises, or the record is
    dropped; timestamp None: it could not be read. invalid(message, key, value): raises for a negative
    timestamp. value_serde: if the value goes on as its own serde has read it.
    """

    cdef object to_key, to_value, failed, invalid, value_serde
    cdef bint keys_may_be_none, values_may_be_none, reads_texts
    cdef Rewriter rewriter
    cdef KeyReader reader

    def __init__(self, RecordContext task not None, name, Node child not None, to_key, bint keys_may_be_none, to_value,
                 bint values_may_be_none, KeyReader reader, value_serde, failed, invalid):
        Node.__init__(self, task, name, child)
        self.to_key, self.to_value = to_key, to_value
        self.keys_may_be_none, self.values_may_be_none = keys_may_be_none, values_may_be_none
        self.reads_texts = to_key is DECODE_TEXT
        self.rewriter = to_key if type(to_key) is Rewriter else None
        self.reader = reader
        self.value_serde = value_serde
        self.failed, self.invalid = failed, invalid

    cdef inline object key(self, message):
        cdef Message ours
        cdef object key
        if type(message) is Message:
            ours = <Message>message
            key = ours._key
            if self.reads_texts:
                if type(key) is bytes:
                    ours._origin.has_texts = True
                    return self.to_key(key)
                return key
            if type(key) is str:
                key = (<str>key).encode()
        else:
            key = message.key()
        if key is None:
            return self.to_key(None) if self.keys_may_be_none else None
        if self.rewriter is not None:
            data = self.rewriter.rewrite(<bytes?>key)
            return None if data is None else key_from(<bytes?>data, self.reader)
        return key if self.to_key is None else self.to_key(key)

    cdef inline object value(self, data):
        if data is None:
            return self.to_value(None) if self.values_may_be_none else None
        return data if self.to_value is None else self.to_value(data)

    def process_batch(self, messages):
        """Process records with their own timestamps."""
        cdef RecordContext task = self.task
        cdef Message ours
        cdef int64_t timestamp = 0
        cdef bint is_read = False
        remaining = iter(messages)
        message = key = headers = None
        while True:
            try:
                for message in remaining:
                    is_read = False
                    task.at = self.name
                    key = self.key(message)
                    if type(message) is Message:
                        ours = <Message>message
                        value = self.value(ours._value)
                        timestamp, headers = ours._timestamp, ours._headers
                    else:
                        value = self.value(message.value())
                        timestamp, headers = message.timestamp()[1], message.headers()
                    is_read = True
                    task.message, task.timestamp, task.headers = message, timestamp, headers
                    if timestamp > task.stream_time_ms:
                        task.stream_time_ms = timestamp
                    elif timestamp < 0:
                        self.invalid(message, key_of(key), value)
                    if self.value_serde is not None:
                        task.written_value, task.written_serde, task.written_data = value, self.value_serde, None
                    deliver(self.child, key, value, timestamp, headers)
                    message = None
                return
            except BaseException as error:
                if message is None:
                    raise
                if is_read:
                    task.message, task.timestamp, task.headers = message, timestamp, headers
                self.failed(message, key_of(key) if is_read else None, timestamp if is_read else None, error)

    def process_stamped(self, records):
        """Process StampedRecords; an iterator may deserialize and stamp them meanwhile."""
        cdef RecordContext task = self.task
        cdef int64_t timestamp = 0
        remaining = iter(records)
        message = key = headers = None
        while True:
            try:
                for message, stamp, key, value in remaining:
                    timestamp, headers = stamp, message.headers()
                    task.at = self.name
                    task.message, task.timestamp, task.headers = message, timestamp, headers
                    if timestamp > task.stream_time_ms:
                        task.stream_time_ms = timestamp
                    task.written_value = None
                    deliver(self.child, key, value, timestamp, headers)
                    message = None
                return
            except BaseException as error:
                if message is None:  # no record could be stamped
                    raise
                task.message, task.timestamp, task.headers = message, timestamp, headers
                self.failed(message, key, timestamp, error)
                message = None
