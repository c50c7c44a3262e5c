# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=False
"""The nodes of a sub-topology in one task. A record goes through them depth first: nodes call each other in C.

Every operator can be a node that calls Python (PythonNode); those that are hot are compiled. docs/nodes.md explains it.
"""

cimport cython
from libc.math cimport INFINITY
from libc.stdint cimport INT64_MAX, int32_t, int64_t

from penstock.kernel.codecs cimport Rewriter
from penstock.kernel.conversions cimport Conversion, converted
from penstock.kernel.messages cimport Message
from penstock.kernel.messages import DECODE_TEXT
from penstock.kernel.named_tuples cimport tuple_of_four, tuple_of_three
from penstock.kernel.rows cimport TIME_BYTES, log_key_of
from penstock.kernel.sinks cimport PARTITIONER_DECIDES, RecordSink, WindowedSink

cdef extern from *:
    """
    /* Whether an object is an int of 0 to 2**63 - 1. */
    static inline int is_timestamp(PyObject *number) {
        int overflow;
        return PyLong_CheckExact(number) && PyLong_AsLongLongAndOverflow(number, &overflow) >= 0;  // else -1
    }
    """
    bint is_timestamp(object)

cdef type CHANGE = None
cdef type WINDOWED = None


def set_types(type change not None, type windowed not None):
    """Set the types of a table's changes and of windowed keys: topology/context/task_context.py does."""
    global CHANGE, WINDOWED
    CHANGE, WINDOWED = change, windowed


cdef object windowed_key(key, int64_t start, int64_t end):
    return tuple_of_three(WINDOWED, key, start, end)


cdef class RecordContext:
    """The record at work in a task; see TaskContext for what it means.

    at: the name of the node at work, which an error names. tracer: gets enter(name, timestamp) and leave() of each node
    while records are traced; None otherwise. on_due(): called before a record if stream time has reached due_ms. written_…:
    the last value that a node has serialized or read, its serde and its bytes (None if it was read), until user code has
    seen it.
    """

    def __cinit__(self):
        self.timestamp = self.stream_time_ms = -1
        self.due_ms = INT64_MAX


# -- measurements

@cython.final
cdef class Tally:
    """The number, the sum and the extremes of measured values since the last take()."""

    def __cinit__(self):
        self.clear()

    cdef void clear(self) noexcept:
        self.count, self.sum, self.lowest, self.highest = 0, 0, INFINITY, -INFINITY

    cdef void note(self, double value) noexcept:
        self.count += 1
        self.sum += value
        self.lowest, self.highest = min(self.lowest, value), max(self.highest, value)

    def add(self, double value):
        """Add a value."""
        self.note(value)

    def take(self):
        """Return count, sum, lowest and highest value, and start again; None without values."""
        if not self.count:
            return None
        taken = self.count, self.sum, self.lowest, self.highest
        self.clear()
        return taken


# -- keys

@cython.final
cdef class KeyReader:
    """What has to be known of keys that are still bytes. serde: which has written them. decode: for bytes (not None).

    by_topic: whether the bytes may depend on the topic that they were written for: a store's, or a source's.
    """

    def __init__(self, serde, decode):
        self.serde = serde
        self.decode = decode
        self.by_topic = serde is not None and serde.serializer is None


@cython.final
@cython.freelist(64)
cdef class Key:
    """A record's key as its serde writes it, until someone looks. In a window the bytes are those of the key inside.

    If they depend on the topic, they may be those of any topic, as another serializer with the same schema writes them.
    """

    cdef object read(self):
        if not self.is_read:
            self.value = converted(self.reader.decode, self.data)
            if self.is_windowed:
                self.value = tuple_of_three(WINDOWED, self.value, self.start, self.end)
            self.is_read = True
        return self.value

    cdef bytes windowed_data(self, int times_size):
        """Return the bytes of a windowed key: its start follows the inner key, or with two times its end and its start."""
        if times_size == TIME_BYTES:
            return log_key_of(self.data, self.start, 0, 0)
        return log_key_of(self.data, self.end, self.start, TIME_BYTES)


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


@cython.final
cdef class End(Node):
    """After the last node."""

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        return 0

    cdef int change(self, key, new, old, bint is_latest, int64_t timestamp, headers) except -1:
        return 0

    cpdef int use_of_key(self, serde) except -1:
        return 0


cdef End END = End.__new__(End)


cdef class ChangeNode(Node):
    """Base of nodes for changes."""

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        new, old, is_latest = value
        return self.change(key, new, old, is_latest, timestamp, headers)

    cdef int change(self, key, new, old, bint is_latest, int64_t timestamp, headers) except -1:
        raise NotImplementedError


cdef int traced(Node to, tracer, key, value, int64_t timestamp, headers) except -1:
    if to.name is None:
        return to.process(key, value, timestamp, headers)
    tracer.enter(to.name, timestamp)
    try:
        return to.process(key, value, timestamp, headers)
    finally:
        tracer.leave()


cdef int traced_change(Node to, tracer, key, new, old, bint is_latest, int64_t timestamp, headers) except -1:
    if to.name is None:
        return to.change(key, new, old, is_latest, timestamp, headers)
    tracer.enter(to.name, timestamp)
    try:
        return to.change(key, new, old, is_latest, timestamp, headers)
    finally:
        tracer.leave()


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
        task.at = self.name
        key_data = known_bytes_of(key, self.key_serde, self.sink.to_key)
        given = key_of(key) if key_data is None else key_data
        data = written_data_of(task, value, self.value_serde)
        given_value = value if data is None else data
        error = self.sink.put(
            given, key_data is not None, given_value, data is not None, timestamp, headers, PARTITIONER_DECIDES
        )
        if error is not None:
            self.unsent(key_of(key), value, timestamp, headers, error)
        return 0

    cpdef int use_of_key(self, serde) except -1:
        return NEEDS_BYTES if serde is self.key_serde else READS


@cython.final
cdef class PartitionedSink(Node):
    """Writes to a topic with a partitioner: partitioner(topic, key, value, count) -> partition, None or several.

    with_headers: partitioner(topic, key, value, headers, count). place: the field of the value that is the partition,
    instead. send_to(chosen, key, value, timestamp, headers): for several.
    """

    cdef RecordSink sink
    cdef str topic
    cdef bint with_headers
    cdef object key_serde, unsent, partitioner, place, partition_count, send_to

    def __init__(self, task, name, RecordSink sink not None, str topic, key_serde, unsent, partitioner,
                 bint with_headers, place, partition_count, send_to):
        Node.__init__(self, task, name)
        self.sink, self.topic, self.key_serde, self.unsent = sink, topic, key_serde, unsent
        self.partitioner, self.with_headers, self.place = partitioner, with_headers, place
        self.partition_count, self.send_to = partition_count, send_to

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        self.task.at = self.name
        self.task.written_value = None
        if self.place is not None:
            chosen = fields_of(value)[self.place]
        elif self.with_headers:
            chosen = self.partitioner(self.topic, key_of(key), value, headers, self.partition_count())
        else:
            chosen = self.partitioner(self.topic, key_of(key), value, self.partition_count())
        if chosen is not None and (type(chosen) is not int or chosen < 0):
            error = self.send_to(chosen, key_of(key), value, timestamp, headers)
        else:
            partition = PARTITIONER_DECIDES if chosen is None else chosen
            data = known_bytes_of(key, self.key_serde, self.sink.to_key)
            given = key_of(key) if data is None else data
            error = self.sink.put(given, data is not None, value, False, timestamp, headers, partition)
        if error is not None:
            self.unsent(key_of(key), value, timestamp, headers, error)
        return 0

    cpdef int use_of_key(self, serde) except -1:
        return READS if self.place is None or serde is not self.key_serde else NEEDS_BYTES


@cython.final
cdef class WindowedKeySink(Node):
    """Writes to a topic records with windowed keys, whose partition is that of the key inside.

    inner: the serde of that.
    """

    cdef WindowedSink sink
    cdef object inner, value_serde, unsent

    def __init__(self, task, name, WindowedSink sink not None, inner, value_serde, unsent):
        Node.__init__(self, task, name)
        self.sink = sink
        self.inner, self.value_serde, self.unsent = inner, value_serde, unsent

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        cdef RecordContext task = self.task
        task.at = self.name
        cdef bint has_bytes = has_windowed_bytes(key, self.inner)
        given = (<Key>key).windowed_data(self.sink.times_size) if has_bytes else key_of(key)
        data = written_data_of(task, value, self.value_serde)
        given_value = value if data is None else data
        error = self.sink.put(given, has_bytes, given_value, data is not None, timestamp, headers, PARTITIONER_DECIDES)
        if error is not None:
            self.unsent(key_of(key), value, timestamp, headers, error)
        return 0


# -- sources

@cython.final
cdef class Lateness(Node):
    """Behind a source: measures stream time minus each record's timestamp, in ms."""

    cdef Tally tally

    def __init__(self, RecordContext task not None, Node child not None, Tally tally not None):
        Node.__init__(self, task, None, child)
        self.tally = tally

    cdef int process(self, key, value, int64_t timestamp, headers) except -1:
        self.tally.note(self.task.stream_time_ms - timestamp)
        return deliver(self.child, key, value, timestamp, headers)

    cpdef int use_of_key(self, serde) except -1:
        return self.child.use_of_key(serde)

    cpdef dict known_keys(self, serde):
        return self.child.known_keys(serde)


@cython.final
cdef class Source(Node):
    """The source of one topic.

    to_key, to_value: read bytes; keys_may_be_none, values_may_be_none: whether they are called for None, too. A Rewriter
    as to_key leaves keys as bytes; unread: the Serde's, if some keys may stay the bytes they are; reader: for both.
    failed(message, key, timestamp, error): raises, or the record is dropped; timestamp None: it could not be read.
    invalid(message, key, value): raises for a negative timestamp. value_serde: if the value goes on as its own serde
    has read it.
    """

    cdef object to_key, to_value, failed, invalid, value_serde
    cdef bint keys_may_be_none, values_may_be_none, reads_texts
    cdef Rewriter rewriter
    cdef Conversion unread
    cdef KeyReader reader

    def __init__(self, RecordContext task not None, name, Node child not None, to_key, bint keys_may_be_none, to_value,
                 bint values_may_be_none, Conversion unread, KeyReader reader, value_serde, failed, invalid):
        Node.__init__(self, task, name, child)
        self.to_key, self.to_value = to_key, to_value
        self.keys_may_be_none, self.values_may_be_none = keys_may_be_none, values_may_be_none
        self.reads_texts = to_key is DECODE_TEXT
        self.rewriter = to_key if type(to_key) is Rewriter else None
        self.unread, self.reader = unread, reader
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
        if self.unread is not None and self.unread.of(key) is not None:
            return key_from(<bytes>key, self.reader)
        return key if self.to_key is None else converted(self.to_key, key)

    cdef inline object value(self, data):
        if data is None:
            return self.to_value(None) if self.values_may_be_none else None
        return data if self.to_value is None else converted(self.to_value, data)

    cdef int fire(self, message, int64_t timestamp, headers) except -1:
        """Fire what is due before a record."""
        cdef RecordContext task = self.task
        if task.on_due is not None:  # it is without timers, whose due_ms a record with the highest timestamp reaches
            task.on_due()
        task.at, task.message, task.timestamp, task.headers = self.name, message, timestamp, headers
        return 0

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
                    if task.stream_time_ms >= task.due_ms:
                        self.fire(message, timestamp, headers)
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
                    if task.stream_time_ms >= task.due_ms:
                        self.fire(message, timestamp, headers)
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
