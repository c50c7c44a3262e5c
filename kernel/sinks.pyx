"""From a sink's objects to the records that a producer takes: what topology/ and workers/tasks/record_sends.py do too."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t

from penstock.kernel.murmur2 cimport partition_of

cdef class RecordTaker:
    """What has records after a sink: record_accumulator.pyx."""

    cdef bint take(self, str topic, int32_t partition, key, value, timestamp, headers) except -1:
        """Return False if the record is not one for this way, or is not taken: then it is tried in Python.

        partition: PARTITIONER_DECIDES, or the one. timestamp: in ms, None for now.
        """
        return False


@cython.final
cdef class RecordWriter:
    """A task's send and log_change for the usual record; plain, the same in Python, has all others.

    records: takes them. errors: as long as there are any, plain raises them. producer: the StreamsProducer, whose
    transaction plain begins.
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
        """Return False if the record is not usual, or not one for the RecordTaker: plain has it."""
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
    """A sink's way from objects to the producer. to_key, to_value: what serializes them, unless they are None.

    to_key is None where keys are bytes already. Keys that are texts are not made bytes first where they are ASCII.
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
        """Send a record and return None, or return why it cannot be serialized: an Exception."""
        try:
            if key is not None and self.to_key is not None and not (self.has_texts and is_ascii(key)):
                key = self.to_key(key)
            if value is not None:
                value = self.to_value(value)
        except Exception as error:
            return error
        cdef int32_t chosen = PARTITIONER_DECIDES if partition is None else partition
        if not self.writer.write(self.topic, chosen, key, value, timestamp, headers):
            self.writer.plain(self.topic, key.encode() if is_ascii(key) else key, value, timestamp, headers, partition)
        return None


@cython.final
cdef class WindowedSink:
    """A sink's way for windowed keys: as RecordSink's, and the partition is that of the key before times_size bytes."""

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
        """Send a record and return None, or return why its value cannot be serialized: an Exception."""
        cdef bytes key = windowed if self.to_key is None else self.to_key(windowed)
        if key is None or PyBytes_GET_SIZE(key) < self.times_size:
            raise TypeError(f"a windowed key is needed, not {windowed!r}")
        cdef int32_t partition = partition_of(PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key) - self.times_size, partitions)
        if value is not None:
            try:
                value = self.to_value(value)
            except Exception as error:
                return error
        if not self.writer.write(self.topic, partition, key, value, timestamp, headers):
            self.writer.plain(self.topic, key, value, timestamp, headers, partition)
        return None


def sink_for(send, str topic, to_key, to_value, Py_ssize_t times_size=0):
    """Return the send of a RecordSink in place of a RecordWriter's, with times of a WindowedSink; None in place of others."""
    writer = getattr(send, "__self__", None)
    if type(writer) is not RecordWriter:
        return None
    if times_size:
        return WindowedSink(writer, topic, to_key, to_value, times_size).send
    return RecordSink(writer, topic, to_key, to_value).send
