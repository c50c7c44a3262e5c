"""Hands records to librdkafka without confluent-kafka's produce: what workers/record_collector.py does for most.

confluent-kafka allocates a state for each record, looks its topic up by name and takes the GIL for each that was
written. Here a record costs one call of librdkafka's; which ones were lost is learned from an interceptor: delivery.h.
The producer stays confluent-kafka's, which does all else, and produces what is not usual.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint64_t, uintptr_t
from libc.stdlib cimport free
from libc.string cimport memcpy

import confluent_kafka
from confluent_kafka import KafkaError

from penstock.kernel.librdkafka import PATH, address_of_handle, handle_of

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(str)
    void *PyUnicode_1BYTE_DATA(str)
    Py_ssize_t PyUnicode_GET_LENGTH(str)

cdef extern from "librdkafka.h":
    int RD_PRODUCER
    bint rd_load(const char *)
    int rd_type(const void *) nogil
    const char *rd_name(const void *) nogil
    const char *rd_err2str(int) nogil
    void *rd_topic_new(void *, const char *, void *) nogil
    void rd_topic_destroy(void *) nogil
    int32_t rd_msg_partitioner_murmur2(const void *, const void *, size_t, int32_t, void *, void *) nogil

cdef extern from "delivery.h":
    ctypedef struct losses:
        pass
    ctypedef struct lost_record:
        lost_record *next
        int err
        int32_t partition
        Py_ssize_t topic_size, key_size, value_size
        char *data
    losses *losses_of(void *)
    lost_record *losses_take(losses *, int *)
    bint produce(void *, void *, int32_t, const void *, size_t, const void *, size_t, int64_t)

cdef enum:
    PARTITIONER_DECIDES = -1
    NOW = 0
    EARLIEST = 1  # librdkafka takes timestamp 0 for "now"
    TIME_BYTES = 8  # of a time in a windowed key

USABLE = PATH is not None and rd_load(PATH.encode())
#: What a Producer must be configured with to have a RecordProducer.
SETTINGS = {"plugin.library.paths": __file__} if USABLE else {}


cdef bint is_ascii(key):
    return type(key) is str and PyUnicode_IS_ASCII(<str>key)


cdef bint find_bytes(key, const char **data, Py_ssize_t *size):
    """Return whether a key is bytes, or a text that is its own bytes as it lies there, and where they are."""
    if type(key) is bytes:
        data[0], size[0] = PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
    elif is_ascii(key):
        data[0], size[0] = <const char *>PyUnicode_1BYTE_DATA(<str>key), PyUnicode_GET_LENGTH(<str>key)
    else:
        return False
    return True


@cython.final
@cython.no_gc_clear  # topics go before the producer that they belong to
cdef class RecordProducer:
    """The records of one confluent_kafka.Producer. One thread may use it."""

    cdef object producer  # lives as long as its handle is used
    cdef void **handle  # where the producer keeps it; NULL there: it is closed
    cdef losses *lost
    cdef dict topics  # librdkafka's topics by name, as numbers; 0: it has refused the name
    cdef str last_name
    cdef void *last_topic

    def __cinit__(self, producer):
        self.producer = producer
        self.handle = <void **><uintptr_t>address_of_handle(producer)
        self.lost = losses_of(self.handle[0])
        self.topics = {}

    def __dealloc__(self):
        if self.handle[0] is not NULL:
            for topic in filter(None, self.topics.values()):
                rd_topic_destroy(<void *><uintptr_t>topic)

    cdef void *topic(self, str name) except? NULL:
        if name is not self.last_name:
            known = self.topics.get(name)
            if known is None:
                known = self.topics[name] = <uintptr_t>rd_topic_new(self.handle[0], name.encode(), NULL)
            self.last_topic = <void *><uintptr_t>known
            self.last_name = name
        return self.last_topic

    cdef bint produce(self, str topic, int32_t partition, key, value, timestamp) except -1:
        """Return False if the record is not one for this way, or librdkafka does not take it."""
        cdef void *to
        cdef const char *key_data = NULL
        cdef const char *value_data = NULL
        cdef Py_ssize_t key_size = 0, value_size = 0
        cdef int64_t at = NOW if timestamp is None else (timestamp or EARLIEST)
        if key is not None and not find_bytes(key, &key_data, &key_size):
            return False
        if type(value) is bytes:
            value_data, value_size = PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)
        elif value is not None:
            return False
        if self.handle[0] is NULL:
            return False
        to = self.topic(topic)
        return to is not NULL and produce(self.handle[0], to, partition, key_data, key_size, value_data, value_size, at)

    def take_lost(self):
        """Return (KafkaError, (topic, partition, key, value)) for each record that was lost since the last call.

        None in place of a record: records of which nothing is known, for want of memory.
        """
        cdef int unknown
        cdef lost_record *lost = losses_take(self.lost, &unknown)
        cdef lost_record *following
        cdef list found = []
        cdef char *at
        try:
            while lost is not NULL:
                following = lost.next
                at = lost.data
                topic = at[:lost.topic_size].decode()
                at += lost.topic_size
                key = None if lost.key_size < 0 else PyBytes_FromStringAndSize(at, lost.key_size)
                at += max(lost.key_size, 0)
                value = None if lost.value_size < 0 else PyBytes_FromStringAndSize(at, lost.value_size)
                error = KafkaError(lost.err, rd_err2str(lost.err).decode())
                found.append((error, (topic, lost.partition, key, value)))
                free(lost)
                lost = following
        finally:
            while lost is not NULL:
                following = lost.next
                free(lost)
                lost = following
        if unknown:
            found.append((KafkaError(KafkaError._FAIL, f"{unknown} records were lost without a trace"), None))
        return found


@cython.final
cdef class RecordWriter:
    """A task's send and log_change for the usual record; plain, the same in Python, has all others.

    errors: as long as there are any, plain raises them. producer: the StreamsProducer, whose transaction plain begins.
    """

    cdef RecordProducer records
    cdef object plain
    cdef list errors
    cdef object producer
    cdef bint transactional
    cdef dict changelogs

    def __init__(self, RecordProducer records not None, plain, list errors not None, producer, changelogs=None):
        self.records = records
        self.plain = plain
        self.errors = errors
        self.producer = producer
        self.transactional = producer.transactional
        self.changelogs = {} if changelogs is None else dict(changelogs)

    cdef bint write(self, topic, int32_t partition, key, value, timestamp, headers) except -1:
        """Return False if the record is not usual, or not one for RecordProducer.produce: plain has it."""
        return (
            not headers
            and not self.errors
            and (not self.transactional or self.producer.in_transaction)
            and self.records.produce(topic, partition, key, value, timestamp)
        )

    def send(self, topic, key, value, timestamp, headers, partition=None):
        """See record_collector.make_send."""
        if not self.write(topic, PARTITIONER_DECIDES if partition is None else partition, key, value, timestamp, headers):
            self.plain(topic, key, value, timestamp, headers, partition)

    def log_change(self, store_name, key, value, timestamp, headers=None):
        """See record_collector.make_log_change."""
        topic, partition = self.changelogs[store_name]
        if not self.write(topic, partition, key, value, timestamp, headers):
            self.plain(store_name, key, value, timestamp, headers)


@cython.final
cdef class RecordSink:
    """A sink's way from objects to librdkafka. to_key, to_value: what serializes them, unless they are None.

    Keys that are texts are not made bytes first where they are ASCII.
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

    def send(self, key, value, timestamp, headers):
        """Send a record and return None, or return why it cannot be serialized: an Exception."""
        try:
            if key is not None and not (self.has_texts and is_ascii(key)):
                key = self.to_key(key)
            if value is not None:
                value = self.to_value(value)
        except Exception as error:
            return error
        if not self.writer.write(self.topic, PARTITIONER_DECIDES, key, value, timestamp, headers):
            self.writer.plain(self.topic, key.encode() if is_ascii(key) else key, value, timestamp, headers)
        return None


@cython.final
cdef class WindowedSink:
    """A sink's way for windowed keys: the key inside, by to_key, then times of the window; the partition is the key's.

    times: where in a Windowed they are.
    """

    cdef RecordWriter writer
    cdef str topic
    cdef object to_key, to_value
    cdef tuple times
    cdef bint has_texts

    def __init__(self, RecordWriter writer not None, str topic not None, to_key, to_value, tuple times not None):
        self.writer = writer
        self.topic = topic
        self.to_key = to_key
        self.to_value = to_value
        self.times = times
        self.has_texts = to_key is str.encode

    def send(self, windowed, value, timestamp, headers, int32_t partitions):
        """Send a record and return None, or return why its value cannot be serialized: an Exception."""
        if not PyTuple_Check(windowed) or PyTuple_GET_SIZE(windowed) != 3:
            raise TypeError(f"a windowed key is needed, not {windowed!r}")
        cdef bytes key = self.key_bytes(windowed)
        cdef size_t size = PyBytes_GET_SIZE(key) - TIME_BYTES * len(self.times)
        cdef int32_t partition = rd_msg_partitioner_murmur2(NULL, PyBytes_AS_STRING(key), size, partitions, NULL, NULL)
        if value is not None:
            try:
                value = self.to_value(value)
            except Exception as error:
                return error
        if not self.writer.write(self.topic, partition, key, value, timestamp, headers):
            self.writer.plain(self.topic, key, value, timestamp, headers, partition)
        return None

    cdef bytes key_bytes(self, windowed):
        cdef object key = <object>PyTuple_GET_ITEM(windowed, 0)
        cdef const char *data = NULL
        cdef Py_ssize_t size = 0
        cdef uint64_t time
        cdef int i
        if key is not None:
            if not (self.has_texts and is_ascii(key)):
                key = <bytes?>self.to_key(key)
            find_bytes(key, &data, &size)
        made = PyBytes_FromStringAndSize(NULL, size + TIME_BYTES * len(self.times))
        cdef char *to = PyBytes_AS_STRING(made)
        if size:
            memcpy(to, data, size)
        to += size
        for field in self.times:
            time = <uint64_t><int64_t><object>PyTuple_GET_ITEM(windowed, field)
            for i in range(TIME_BYTES):  # big endian
                to[i] = <char>(time >> 8 * (TIME_BYTES - 1 - i))
            to += TIME_BYTES
        return made


def sink_for(send, str topic, to_key, to_value, tuple times=None):
    """Return the send of a RecordSink in place of a RecordWriter's, with times of a WindowedSink; None in place of others."""
    writer = getattr(send, "__self__", None)
    if type(writer) is not RecordWriter:
        return None
    if times is None:
        return RecordSink(writer, topic, to_key, to_value).send
    return WindowedSink(writer, topic, to_key, to_value, times).send


def record_producer_for(producer):
    """Return the RecordProducer of a confluent_kafka.Producer that was made with SETTINGS, None for any other."""
    if not USABLE or not isinstance(producer, confluent_kafka.Producer):
        return None
    cdef uintptr_t handle = handle_of(producer)
    if not handle or rd_type(<void *>handle) != RD_PRODUCER or b"#producer-" not in rd_name(<void *>handle):
        return None
    return None if losses_of(<void *>handle) is NULL else RecordProducer(producer)
