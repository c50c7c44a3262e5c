"""Takes records from librdkafka without a confluent_kafka.Message for each, compiled.

confluent-kafka makes and frees an object of ten fields for each record, and each field is asked for by a call. Here the
records of a consumer's partitions go to a queue of ours, which librdkafka's public functions empty. The consumer stays
confluent-kafka's: everything but records (errors of the client, logs) still comes from its own queue, with its calls.
The only thing that is not public is where its object keeps librdkafka's handle; fetcher_for() says how that is checked.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.stdlib cimport free, malloc

import ctypes

from penstock.kernel.messages cimport Message

import confluent_kafka
from confluent_kafka import KafkaError

#: The releases of confluent-kafka whose Consumer was looked at: its first field is librdkafka's handle.
KNOWN = ("2.16.",)

cdef extern from "dlfcn.h":
    void *dlopen(const char *, int) nogil
    void *dlsym(void *, const char *) nogil
    int RTLD_LAZY, RTLD_NOLOAD

cdef extern from *:
    """
    #include <stdint.h>
    #include <stddef.h>
    /* rd_kafka_message_t of rdkafka.h, which promises not to change it. */
    typedef struct penstock_message_s {
        int err;
        void *rkt;
        int32_t partition;
        void *payload;
        size_t len;
        void *key;
        size_t key_len;
        int64_t offset;
        void *_private;
    } penstock_message_t;
    typedef int64_t (*penstock_timestamp_f)(const penstock_message_t *, int *);
    typedef int (*penstock_headers_f)(const penstock_message_t *, void **);
    typedef int (*penstock_header_f)(const void *, size_t, const char **, const void **, size_t *);
    typedef const char *(*penstock_text_f)(const void *);
    typedef void (*penstock_free_f)(void *);
    typedef void *(*penstock_make_f)(void *);
    typedef void *(*penstock_partition_f)(void *, const char *, int32_t);
    typedef void (*penstock_forward_f)(void *, void *);
    typedef ptrdiff_t (*penstock_batch_f)(void *, int, penstock_message_t **, size_t);
    typedef penstock_message_t *(*penstock_one_f)(void *, int);
    typedef int (*penstock_type_f)(const void *);
    """
    ctypedef struct rd_message "penstock_message_t":
        int err
        void *rkt
        int32_t partition
        void *payload
        size_t len
        void *key
        size_t key_len
        int64_t offset
    ctypedef int64_t (*timestamp_f "penstock_timestamp_f")(const rd_message *, int *) noexcept nogil
    ctypedef int (*headers_f "penstock_headers_f")(const rd_message *, void **) noexcept nogil
    ctypedef int (*header_f "penstock_header_f")(const void *, size_t, const char **, const void **, size_t *) noexcept nogil
    ctypedef const char *(*text_f "penstock_text_f")(const void *) noexcept nogil
    ctypedef void (*free_f "penstock_free_f")(void *) noexcept nogil
    ctypedef void *(*make_f "penstock_make_f")(void *) noexcept nogil
    ctypedef void *(*partition_f "penstock_partition_f")(void *, const char *, int32_t) noexcept nogil
    ctypedef void (*forward_f "penstock_forward_f")(void *, void *) noexcept nogil
    ctypedef Py_ssize_t (*batch_f "penstock_batch_f")(void *, int, rd_message **, size_t) noexcept nogil
    ctypedef rd_message *(*one_f "penstock_one_f")(void *, int) noexcept nogil
    ctypedef int (*type_f "penstock_type_f")(const void *) noexcept nogil

cdef timestamp_f rd_timestamp
cdef headers_f rd_headers
cdef header_f rd_header
cdef text_f rd_topic_name, rd_name, rd_error_text
cdef free_f rd_destroy_message, rd_destroy_queue
cdef make_f rd_queue_new
cdef partition_f rd_queue_of
cdef forward_f rd_forward
cdef batch_f rd_batch
cdef one_f rd_one
cdef type_f rd_type


cdef bint _load(bytes path) except -1:
    """Look librdkafka's functions up in the library that confluent-kafka has loaded."""
    global rd_timestamp, rd_headers, rd_header, rd_topic_name, rd_name, rd_error_text, rd_destroy_message
    global rd_destroy_queue, rd_queue_new, rd_queue_of, rd_forward, rd_batch, rd_one, rd_type
    cdef void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD)
    if library is NULL:
        return False
    rd_timestamp = <timestamp_f>dlsym(library, "rd_kafka_message_timestamp")
    rd_headers = <headers_f>dlsym(library, "rd_kafka_message_headers")
    rd_header = <header_f>dlsym(library, "rd_kafka_header_get_all")
    rd_topic_name = <text_f>dlsym(library, "rd_kafka_topic_name")
    rd_name = <text_f>dlsym(library, "rd_kafka_name")
    rd_error_text = <text_f>dlsym(library, "rd_kafka_message_errstr")
    rd_destroy_message = <free_f>dlsym(library, "rd_kafka_message_destroy")
    rd_destroy_queue = <free_f>dlsym(library, "rd_kafka_queue_destroy")
    rd_queue_new = <make_f>dlsym(library, "rd_kafka_queue_new")
    rd_queue_of = <partition_f>dlsym(library, "rd_kafka_queue_get_partition")
    rd_forward = <forward_f>dlsym(library, "rd_kafka_queue_forward")
    rd_batch = <batch_f>dlsym(library, "rd_kafka_consume_batch_queue")
    rd_one = <one_f>dlsym(library, "rd_kafka_consume_queue")
    rd_type = <type_f>dlsym(library, "rd_kafka_type")
    return (
        rd_timestamp and rd_headers and rd_header and rd_topic_name and rd_name and rd_error_text
        and rd_destroy_message and rd_destroy_queue and rd_queue_new and rd_queue_of and rd_forward
        and rd_batch and rd_one and rd_type
    )


cdef object _bytes(const void *data, size_t size):
    return None if data is NULL else PyBytes_FromStringAndSize(<const char *>data, size)


cdef list _headers_of(const rd_message *record):
    cdef void *headers = NULL
    cdef const char *name
    cdef const void *value
    cdef size_t size, index = 0
    if rd_headers(record, &headers) or headers is NULL:
        return None
    cdef list found = []
    while not rd_header(headers, index, &name, &value, &size):
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
    cdef dict topics  # names by librdkafka's topic

    def __cinit__(self, consumer, uintptr_t handle):
        self.consumer = consumer
        self.handle = <void *>handle
        self.queue = rd_queue_new(self.handle)
        self.topics = {}

    def __dealloc__(self):
        free(self.batch)

    def take(self, str topic, int32_t partition):
        """Have the records of a partition come here from now on; those that are there already stay where they are."""
        self.check_open()
        cdef bytes name = topic.encode()
        cdef void *source = rd_queue_of(self.handle, name, partition)
        if source is not NULL:
            rd_forward(source, self.queue)
            rd_destroy_queue(source)
        self.topics.clear()

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
        cdef Py_ssize_t size = rd_batch(self.queue, 0, self.batch, limit)
        if size <= 0 and timeout_ms > 0:
            with nogil:
                self.batch[0] = rd_one(self.queue, timeout_ms)
            if self.batch[0] is NULL:
                return {}, []
            size = 1
            if limit > 1:
                size += max(rd_batch(self.queue, 0, self.batch + 1, limit - 1), 0)
        return self.messages(size)

    cdef tuple messages(self, Py_ssize_t size):
        cdef dict records = {}
        cdef list events = [], run = None
        cdef rd_message *record
        cdef Message message
        cdef void *rkt = NULL
        cdef int32_t partition = -1
        cdef str topic = None
        cdef Py_ssize_t index
        try:
            for index in range(size):
                record = self.batch[index]
                message = Message.__new__(Message)
                message._partition = record.partition
                message._offset = record.offset
                if record.err:
                    message._topic = self.topic_of(record.rkt)
                    message._error = KafkaError(record.err, rd_error_text(record).decode("utf-8", "replace"))
                    events.append(message)
                    continue
                if run is None or record.rkt is not rkt or record.partition != partition:
                    rkt, partition = record.rkt, record.partition
                    topic = self.topic_of(rkt)
                    run = records.setdefault((topic, partition), [])
                message._topic = topic
                message._timestamp = rd_timestamp(record, &message._timestamp_type)
                message._key = _bytes(record.key, record.key_len)
                message._value = _bytes(record.payload, record.len)
                message._headers = _headers_of(record)
                run.append(message)
        finally:
            for index in range(size):
                rd_destroy_message(self.batch[index])
        return records, events

    cdef str topic_of(self, void *rkt):
        if rkt is NULL:
            return None
        known = self.topics.get(<uintptr_t>rkt)
        if known is None:
            known = self.topics[<uintptr_t>rkt] = rd_topic_name(rkt).decode()
        return known

    cdef int check_open(self) except -1:
        if self.queue is NULL:
            raise RuntimeError("The consumer is closed")
        return 0

    def close(self):
        """Give the queue back."""
        if self.queue is not NULL:
            rd_destroy_queue(self.queue)
            self.queue = NULL


cdef str _library():
    """Return the path of the librdkafka that this process has loaded, None if that cannot be found out."""
    try:
        with open("/proc/self/maps") as maps:
            paths = {line.split(maxsplit=5)[5].strip() for line in maps if "librdkafka" in line}
    except OSError:
        return None
    return paths.pop() if len(paths) == 1 else None


def _usable():
    path = _library()
    return confluent_kafka.__version__.startswith(KNOWN) and path is not None and _load(path.encode())


USABLE = _usable()


def fetcher_for(consumer):
    """Return the Fetcher of a confluent_kafka.Consumer, None if there is none for it.

    Its handle is taken for one only in a known release of confluent-kafka, and if librdkafka says that it is a
    consumer's.
    """
    if not USABLE or not isinstance(consumer, confluent_kafka.Consumer):
        return None
    cdef uintptr_t handle = ctypes.c_void_p.from_address(id(consumer) + object.__basicsize__).value or 0
    if not handle or rd_type(<void *>handle) != 1 or b"#consumer-" not in rd_name(<void *>handle):
        return None
    return Fetcher(consumer, handle)
