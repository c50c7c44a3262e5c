"""From the objects of sinks and stores to a producer's records."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t

from penstock.kernel.conversions cimport converted
from penstock.kernel.murmur2 cimport partition_of


cdef class RecordTaker:
    """Takes the records of sinks; see RecordAccumulator."""

    cdef bint take(self, str topic, int32_t partition, key, value, int64_t timestamp, headers, source) except -1:
        """Take a record. Returns False if it did not, because the record needs the path in Python.

        partition: the partition, or PARTITIONER_DECIDES. timestamp: in ms. source: see Writer.produce.
        """
        return False

    cdef int64_t now(self) except? -1:
        """Return the timestamp of a record that is given none."""
        return 0

    cdef int32_t partitions(self, str topic) except -1:
        """Return a topic's number of partitions, 0 if it is not known."""
        return 0


@cython.final
cdef class RecordWriter:
    """The TaskOutput of a stream thread's task, for ordinary records. plain: the same in Python, for all others.

    errors: while there are any, plain is called, which raises them. producer: the StreamsProducer, whose transaction
    plain begins. changelogs: topic and partition by store. source: returns the source of the record, see Writer.produce;
    None where no handler needs it.
    """

    def __init__(self, RecordTaker records not None, plain, list errors not None, producer, changelogs, source=None):
        self.records = records
        self.plain = plain
        self.errors = errors
        self.producer = producer
        self.transactional = producer.transactional
        self.source = source
        self.changelogs = dict(changelogs)

    cdef bint write(self, topic, int32_t partition, key, value, int64_t timestamp, headers) except -1:
        """Return False if plain must be called."""
        return (
            not self.errors
            and (not self.transactional or self.producer.in_transaction)
            and self.records.take(
                topic, partition, key, value, timestamp, headers, None if self.source is None else self.source()
            )
        )

    cdef int64_t time(self, timestamp) except? -1:
        return self.records.now() if timestamp is None else timestamp

    def send(self, topic, key, value, timestamp, headers, partition=None):
        """See TaskOutput.send."""
        cdef int32_t to = PARTITIONER_DECIDES if partition is None else partition
        if not self.write(topic, to, key, value, self.time(timestamp), headers):
            self.plain.send(topic, key, value, timestamp, headers, partition)

    def log_change(self, store_name, key, value, timestamp, headers=None):
        """See TaskOutput.log_change."""
        topic, partition = self.changelogs[store_name]
        if not self.write(topic, partition, key, value, self.time(timestamp), headers):
            self.plain.log_change(store_name, key, value, timestamp, headers)


cdef class RecordSink:
    """Sends a sink's objects to a task's output.

    to_key, to_value: serialize keys and values; None if these are bytes already. keys_may_be_none, values_may_be_none:
    whether they are called for None, too. ASCII text keys are used without encoding them.
    """

    def __init__(self, output, str topic not None, to_key, bint keys_may_be_none, to_value, bint values_may_be_none):
        self.writer = <RecordWriter>output if type(output) is RecordWriter else None
        self.plain = output if self.writer is None else self.writer.plain
        self.topic = topic
        self.to_key, self.keys_may_be_none = to_key, keys_may_be_none
        self.to_value, self.values_may_be_none = to_value, values_may_be_none
        self.has_texts = getattr(to_key, "__wrapped__", to_key) is str.encode  # it is Guarded

    cdef object key_bytes(self, key):
        """Return a key serialized, or an ASCII text as it is."""
        if self.to_key is None or (key is None and not self.keys_may_be_none) or (self.has_texts and is_ascii(key)):
            return key
        return converted(self.to_key, key)

    cdef object value_bytes(self, value):
        """Return a value serialized."""
        if self.to_value is None or (value is None and not self.values_may_be_none):
            return value
        return converted(self.to_value, value)

    cdef object put(self, key, bint has_key, value, bint has_value, int64_t timestamp, headers, int32_t partition):
        """Send a record and return None, or return the Exception if it cannot be serialized.

        has_key, has_value: whether they are serialized already.
        """
        try:
            if not has_key:
                key = self.key_bytes(key)
            if not has_value:
                value = self.value_bytes(value)
        except Exception as error:
            return error
        self.write(key, value, timestamp, headers, partition)
        return None

    cdef int write(self, key, value, int64_t timestamp, headers, int32_t partition) except -1:
        if self.writer is None or not self.writer.write(self.topic, partition, key, value, timestamp, headers):
            key = (<str>key).encode() if type(key) is str else key
            if partition == PARTITIONER_DECIDES:
                self.plain.send(self.topic, key, value, timestamp, headers)
            else:
                self.plain.send(self.topic, key, value, timestamp, headers, partition)
        return 0


@cython.final
cdef class WindowedSink(RecordSink):
    """As RecordSink, for windowed keys. The partition is that of the inner key, without the last times_size bytes.

    partition_count(): the number of the topic's partitions, if the producer does not know it yet.
    """

    def __init__(self, output, topic, to_key, bint keys_may_be_none, to_value, bint values_may_be_none, Py_ssize_t times_size,
                 partition_count):
        RecordSink.__init__(self, output, topic, to_key, keys_may_be_none, to_value, values_may_be_none)
        self.times_size, self.partition_count = times_size, partition_count

    cdef object put(self, windowed, bint has_key, value, bint has_value, int64_t timestamp, headers, int32_t partition):
        """As RecordSink's, but a key that cannot be serialized raises, and the key determines the partition."""
        cdef int32_t partitions = 0 if self.writer is None else self.writer.records.partitions(self.topic)
        if not partitions:
            partitions = self.partition_count()
        key = windowed if has_key else self.key_bytes(windowed)
        if type(key) is not bytes or PyBytes_GET_SIZE(<bytes>key) < self.times_size:
            raise TypeError(f"a windowed key is needed, not {windowed!r}")
        try:
            if not has_value:
                value = self.value_bytes(value)
        except Exception as error:
            return error
        cdef Py_ssize_t inside = PyBytes_GET_SIZE(<bytes>key) - self.times_size
        self.write(key, value, timestamp, headers, partition_of(PyBytes_AS_STRING(<bytes>key), inside, partitions))
        return None


@cython.final
cdef class Changelog:
    """Writes the changes of a store to a task's output."""

    def __init__(self, output, str store not None):
        self.plain = output
        self.store = store
        if type(output) is RecordWriter and store in (<RecordWriter>output).changelogs:
            self.writer = <RecordWriter>output
            self.plain = self.writer.plain
            self.topic, self.partition = self.writer.changelogs[store]

    cdef int write(self, key, value, int64_t timestamp, headers=None) except -1:
        if self.writer is None or not self.writer.write(self.topic, self.partition, key, value, timestamp, headers):
            self.plain.log_change(self.store, key, value, timestamp, headers)
        return 0
