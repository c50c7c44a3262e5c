"""Takes records from librdkafka without a confluent_kafka.Message for each, compiled.

confluent-kafka makes and frees an object of ten fields for each record, and each field is asked for by a call. Here the
records of a consumer's partitions go to a queue of ours, which librdkafka's public functions empty. The consumer stays
confluent-kafka's: everything but records (errors of the client, logs) still comes from its own queue, with its calls.
What of confluent-kafka is not public: librdkafka.py.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.stdlib cimport free, malloc

from penstock.kernel.messages cimport Message, Origin, key_from

import confluent_kafka
from confluent_kafka import KafkaError

from penstock.kernel.librdkafka import PATH, handle_of

cdef extern from "librdkafka.h":
    ctypedef struct rd_message:
        int err
        void *rkt
        int32_t partition
        void *payload
        size_t len
        void *key
        size_t key_len
        int64_t offset
    int RD_CONSUMER
    bint rd_load(const char *)
    const char *rd_name(const void *) nogil
    int rd_type(const void *) nogil
    const char *rd_topic_name(const void *) nogil
    int64_t rd_message_timestamp(const rd_message *, int *) nogil
    int rd_message_headers(const rd_message *, void **) nogil
    int32_t rd_message_leader_epoch(const rd_message *) nogil
    int rd_header_get_all(const void *, size_t, const char **, const void **, size_t *) nogil
    const char *rd_message_errstr(const rd_message *) nogil
    void rd_message_destroy(rd_message *) nogil
    void *rd_queue_new(void *) nogil
    void rd_queue_destroy(void *) nogil
    void *rd_queue_get_partition(void *, const char *, int32_t) nogil
    void rd_queue_forward(void *, void *) nogil
    Py_ssize_t rd_consume_batch_queue(void *, int, rd_message **, size_t) nogil
    rd_message *rd_consume_queue(void *, int) nogil


cdef object _bytes(const void *data, size_t size):
    return None if data is NULL else PyBytes_FromStringAndSize(<const char *>data, size)


cdef bint _surely_has_no_headers(const rd_message *record):
    """Whether a record's own bytes say that it has no headers: to ask librdkafka makes and drops a buffer for each.

    A record of the format that has a leader's epoch lies in the fetched buffer as it came, and the number of its
    headers follows its value: docs/kernel.md. An empty value lies elsewhere.
    """
    return (
        record.payload is not NULL
        and record.len > 0
        and rd_message_leader_epoch(record) >= 0
        and (<const char *>record.payload)[record.len] == 0
    )


cdef list _headers_of(const rd_message *record):
    cdef void *headers = NULL
    cdef const char *name
    cdef const void *value
    cdef size_t size, index = 0
    if _surely_has_no_headers(record) or rd_message_headers(record, &headers) or headers is NULL:
        return None
    cdef list found = []
    while not rd_header_get_all(headers, index, &name, &value, &size):
        found.append((name.decode("utf-8", "replace"), _bytes(value, size)))
        index += 1
    return found or None


@cython.final
cdef class Fetcher:
    """The records of one consumer. One thread may use it; close() comes before the consumer's."""

    cdef object consumer  # lives as long as its handle is used
    cdef void *handle
    cdef void *queue
    cdef rd_message **batch
    cdef Py_ssize_t room
    cdef dict origins  # by librdkafka's topic and partition

    def __cinit__(self, consumer, uintptr_t handle):
        self.consumer = consumer
        self.handle = <void *>handle
        self.queue = rd_queue_new(self.handle)
        self.origins = {}

    def __dealloc__(self):
        free(self.batch)

    def take(self, str topic, int32_t partition):
        """Have the records of a partition come here from now on; those that are there already stay where they are."""
        self.check_open()
        cdef bytes name = topic.encode()
        cdef void *source = rd_queue_get_partition(self.handle, name, partition)
        if source is not NULL:
            rd_queue_forward(source, self.queue)
            rd_queue_destroy(source)
        self.origins.clear()

    def fetch(self, Py_ssize_t limit, int timeout_ms):
        """Return up to limit records as {(topic, partition): [message, ...]}, and the events; waits for the first."""
        self.check_open()
        if limit < 1:
            return {}, []
        if limit > self.room:
            free(self.batch)
            self.room = 0
            self.batch = <rd_message **>malloc(limit * sizeof(rd_message *))
            if self.batch is NULL:
                raise MemoryError()
            self.room = limit
        cdef Py_ssize_t size = rd_consume_batch_queue(self.queue, 0, self.batch, limit)
        if size <= 0 and timeout_ms > 0:
            with nogil:
                self.batch[0] = rd_consume_queue(self.queue, timeout_ms)
            if self.batch[0] is NULL:
                return {}, []
            size = 1
            if limit > 1:
                size += max(rd_consume_batch_queue(self.queue, 0, self.batch + 1, limit - 1), 0)
        return self.messages(size)

    cdef tuple messages(self, Py_ssize_t size):
        cdef dict records = {}
        cdef list events = [], run = None
        cdef rd_message *record
        cdef Message message
        cdef Origin origin = None
        cdef void *rkt = NULL
        cdef Py_ssize_t index
        try:
            for index in range(size):
                record = self.batch[index]
                message = Message.__new__(Message)
                message._offset = record.offset
                if record.err:
                    message._origin = self.origin_of(record)
                    message._error = KafkaError(record.err, rd_message_errstr(record).decode("utf-8", "replace"))
                    events.append(message)
                    continue
                if run is None or record.rkt is not rkt or record.partition != origin.partition:
                    rkt, origin = record.rkt, self.origin_of(record)
                    run = records.setdefault((origin.topic, origin.partition), [])
                message._origin = origin
                message._timestamp = rd_message_timestamp(record, &message._timestamp_type)
                message._key = None if record.key is NULL else key_from(<const char *>record.key, record.key_len, origin)
                message._value = _bytes(record.payload, record.len)
                message._headers = _headers_of(record)
                run.append(message)
        finally:
            for index in range(size):
                rd_message_destroy(self.batch[index])
        return records, events

    cdef Origin origin_of(self, const rd_message *record):
        cdef tuple key = (<uintptr_t>record.rkt, record.partition)
        cdef Origin known = self.origins.get(key)
        if known is None:
            known = self.origins[key] = Origin.__new__(Origin)
            known.topic = None if record.rkt is NULL else rd_topic_name(record.rkt).decode()
            known.partition = record.partition
        return known

    cdef int check_open(self) except -1:
        if self.queue is NULL:
            raise RuntimeError("The consumer is closed")
        return 0

    def close(self):
        """Give the queue back."""
        if self.queue is not NULL:
            rd_queue_destroy(self.queue)
            self.queue = NULL


USABLE = PATH is not None and rd_load(PATH.encode())


def fetcher_for(consumer):
    """Return the Fetcher of a confluent_kafka.Consumer, None if there is none for it.

    Its handle is taken for one only if librdkafka says that it is a consumer's; see also librdkafka.py.
    """
    if not USABLE or not isinstance(consumer, confluent_kafka.Consumer):
        return None
    cdef uintptr_t handle = handle_of(consumer)
    if not handle or rd_type(<void *>handle) != RD_CONSUMER or b"#consumer-" not in rd_name(<void *>handle):
        return None
    return Fetcher(consumer, handle)
