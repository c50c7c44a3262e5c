"""From the objects of sinks and stores to a producer's records.

In Python: topology/run/compiled_sink.py, statestore/stores/values.py and workers/tasks/record_sends.py.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t

from penstock.kernel.murmur2 cimport partition_of
from penstock.kernel.rows cimport RowBuffer, timed

cdef extern from "Python.h":
    int64_t PyLong_AsLongLongAndOverflow(object, int *) except? -1


cdef class RecordTaker:
    """Takes the records of sinks; see RecordAccumulator."""

    cdef bint take(self, str topic, int32_t partition, key, value, timestamp, headers) except -1:
        """Take a record. Returns False if it did not, because the record needs the path in Python.

        partition: the partition, or PARTITIONER_DECIDES. timestamp: in ms, None for now.
        """
        return False


@cython.final
cdef class RecordWriter:
    """A task's send or log_change for ordinary records. plain: the same in Python, for all others.

    errors: while there are any, plain is called, which raises them. producer: the StreamsProducer, whose transaction
    plain begins.
    """

    cdef RecordTaker records
    cdef object plain
    cdef list errors
    cdef object producer
    cdef bint transactional
    cdef dict changelogs

    def __init__(self, RecordTaker records not None, plain, list errors not None, producer, changelogs=None):
        self.records = records
        self.plain = plain
        self.errors = errors
        self.producer = producer
        self.transactional = producer.transactional
        self.changelogs = {} if changelogs is None else dict(changelogs)

    cdef bint write(self, topic, int32_t partition, key, value, timestamp, headers) except -1:
        """Return False if plain must be called."""
        return (
            not self.errors
            and (not self.transactional or self.producer.in_transaction)
            and self.records.take(topic, partition, key, value, timestamp, headers)
        )

    def send(self, topic, key, value, timestamp, headers, partition=None):
        """See record_sends.make_send."""
        if not self.write(topic, PARTITIONER_DECIDES if partition is None else partition, key, value, timestamp, headers):
            self.plain(topic, key, value, timestamp, headers, partition)

    def log_change(self, store_name, key, value, timestamp, headers=None):
        """See record_sends.make_log_change."""
        topic, partition = self.changelogs[store_name]
        if not self.write(topic, partition, key, value, timestamp, headers):
            self.plain(store_name, key, value, timestamp, headers)


@cython.final
cdef class RecordSink:
    """Sends a sink's objects to the producer. to_key, to_value: serialize keys and values that are not None.

    They are None if keys or values are bytes already. ASCII text keys are used without encoding them.
    """

    cdef RecordWriter writer
    cdef str topic
    cdef object to_key, to_value
    cdef bint has_texts

    def __init__(self, RecordWriter writer not None, str topic not None, to_key, to_value):
        self.writer = writer
        self.topic = topic
        self.to_key = to_key
        self.to_value = to_value
        self.has_texts = to_key is str.encode

    def send(self, key, value, timestamp, headers, partition=None):
        """Send a record and return None, or return the Exception if it cannot be serialized."""
        try:
            if key is not None and self.to_key is not None and not (self.has_texts and is_ascii(key)):
                key = self.to_key(key)
            if value is not None and self.to_value is not None:
                value = self.to_value(value)
        except Exception as error:
            return error
        cdef int32_t chosen = PARTITIONER_DECIDES if partition is None else partition
        if not self.writer.write(self.topic, chosen, key, value, timestamp, headers):
            self.writer.plain(self.topic, key.encode() if is_ascii(key) else key, value, timestamp, headers, partition)
        return None


@cython.final
cdef class WindowedSink:
    """As RecordSink, for windowed keys. The partition is that of the inner key, without the last times_size bytes."""

    cdef RecordWriter writer
    cdef str topic
    cdef object to_key, to_value
    cdef Py_ssize_t times_size

    def __init__(self, RecordWriter writer not None, str topic not None, to_key, to_value, Py_ssize_t times_size):
        self.writer = writer
        self.topic = topic
        self.to_key = to_key
        self.to_value = to_value
        self.times_size = times_size

    def send(self, windowed, value, timestamp, headers, int32_t partitions):
        """Send a record and return None, or return the Exception if its value cannot be serialized."""
        cdef bytes key = windowed if self.to_key is None else self.to_key(windowed)
        if key is None or PyBytes_GET_SIZE(key) < self.times_size:
            raise TypeError(f"a windowed key is needed, not {windowed!r}")
        cdef int32_t partition = partition_of(PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key) - self.times_size, partitions)
        if value is not None and self.to_value is not None:
            try:
                value = self.to_value(value)
            except Exception as error:
                return error
        if not self.writer.write(self.topic, partition, key, value, timestamp, headers):
            self.writer.plain(self.topic, key, value, timestamp, headers, partition)
        return None


@cython.final
cdef class Changelog:
    """Writes the changes of a store by a task's log_change."""

    cdef object log_change
    cdef RecordWriter writer
    cdef str store
    cdef object topic
    cdef int32_t partition

    def __init__(self, log_change, str store not None):
        self.log_change = log_change
        self.store = store
        owner = getattr(log_change, "__self__", None)
        if type(owner) is RecordWriter and store in (<RecordWriter>owner).changelogs:
            self.writer = <RecordWriter>owner
            self.topic, self.partition = self.writer.changelogs[store]

    cdef int write(self, key, value, timestamp, headers=None) except -1:
        if self.writer is None or not self.writer.write(self.topic, self.partition, key, value, timestamp, headers):
            self.log_change(self.store, key, value, timestamp, headers)
        return 0


def plain_logger(log_change, str store, task, encode):
    """See _log_plain in statestore/stores/values.py."""
    cdef Changelog changelog = Changelog(log_change, store)

    def log_value(key, value):
        data = None if value is None else encode(value)
        changelog.write(key, data, task.timestamp)
        return data

    return log_value


def timestamped_logger(log_change, str store, task, encode, log_any):
    """See _log_timestamped in statestore/stores/values.py. log_any: the same in Python, for unusual timestamps."""
    cdef Changelog changelog = Changelog(log_change, store)

    def log_value(key, value):
        cdef int overflow = 0
        cdef int64_t time
        if value is None:
            changelog.write(key, None, task.timestamp)
            return None
        if not isinstance(value, tuple) or len(<tuple>value) != 2 or type((<tuple>value)[1]) is not int:
            return log_any(key, value)
        timestamp = (<tuple>value)[1]
        time = PyLong_AsLongLongAndOverflow(timestamp, &overflow)
        data = None if overflow else encode((<tuple>value)[0])
        if type(data) is not bytes:
            return log_any(key, value)
        row = timed(time, <bytes>data)
        changelog.write(key, data, timestamp)
        return row

    return log_value


def row_writer(RowBuffer buffer not None, log_change, str store not None):
    """Return put(key, value, timestamp, headers=None): writes the changelog, then the row. None as value deletes it."""
    cdef Changelog changelog = Changelog(log_change, store)

    def put(bytes key not None, value, timestamp, headers=None):
        changelog.write(key, value, timestamp, headers)
        buffer.set(key, None if value is None else timed(timestamp, <bytes?>value))

    return put


def sink_for(send, str topic, to_key, to_value, Py_ssize_t times_size=0):
    """Return the send of a RecordSink, or with times_size of a WindowedSink; None unless send is a RecordWriter's."""
    writer = getattr(send, "__self__", None)
    if type(writer) is not RecordWriter:
        return None
    if times_size:
        return WindowedSink(writer, topic, to_key, to_value, times_size).send
    return RecordSink(writer, topic, to_key, to_value).send
