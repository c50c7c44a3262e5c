"""Hands records to librdkafka without confluent-kafka's produce: what workers/record_collector.py does for most.

confluent-kafka allocates a state for each record, looks its topic up by name and takes the GIL for each that was
written. Here a record costs one call of librdkafka's; which ones were lost is learned from an interceptor: delivery.h.
The producer stays confluent-kafka's, which does all else, and produces what is not usual.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.stdlib cimport free

from penstock.kernel.sinks cimport RecordTaker, find_bytes

import confluent_kafka
from confluent_kafka import KafkaError

from penstock.kernel.librdkafka import PATH, address_of_handle, handle_of

cdef extern from "librdkafka.h":
    int RD_PRODUCER
    bint rd_load(const char *)
    int rd_type(const void *) nogil
    const char *rd_name(const void *) nogil
    const char *rd_err2str(int) nogil
    void *rd_topic_new(void *, const char *, void *) nogil
    void rd_topic_destroy(void *) nogil

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
    NOW = 0
    EARLIEST = 1  # librdkafka takes timestamp 0 for "now"

USABLE = PATH is not None and rd_load(PATH.encode())
#: What a Producer must be configured with to have a RecordProducer.
SETTINGS = {"plugin.library.paths": __file__} if USABLE else {}


@cython.final
@cython.no_gc_clear  # topics go before the producer that they belong to
cdef class RecordProducer(RecordTaker):
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

    cdef bint take(self, str topic, int32_t partition, key, value, timestamp, headers) except -1:
        """See RecordTaker."""
        cdef void *to
        cdef const char *key_data = NULL
        cdef const char *value_data = NULL
        cdef Py_ssize_t key_size = 0, value_size = 0
        cdef int64_t at = NOW if timestamp is None else (timestamp or EARLIEST)
        if headers or key is not None and not find_bytes(key, &key_data, &key_size):
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


def record_producer_for(producer):
    """Return the RecordProducer of a confluent_kafka.Producer that was made with SETTINGS, None for any other."""
    if not USABLE or not isinstance(producer, confluent_kafka.Producer):
        return None
    cdef uintptr_t handle = handle_of(producer)
    if not handle or rd_type(<void *>handle) != RD_PRODUCER or b"#producer-" not in rd_name(<void *>handle):
        return None
    return None if losses_of(<void *>handle) is NULL else RecordProducer(producer)
