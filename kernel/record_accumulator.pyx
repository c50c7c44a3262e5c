"""Appends records to the record batches of Produce requests.

The format is Kafka's (message format v2; Kafka: DefaultRecordBatch, DefaultRecord). Closed batches are sent by
clients/writing/sender.py.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from penstock.kernel.murmur2 cimport partition_of
from penstock.kernel.record_format cimport (
    ATTRIBUTES_AT,
    BEFORE_LENGTH,
    COUNT_AT,
    CRC_AT,
    EPOCH_AT,
    FIRST_TIMESTAMP_AT,
    LAST_OFFSET_DELTA_AT,
    LEADER_EPOCH_AT,
    LENGTH_AT,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    PRODUCER_ID_AT,
    RECORDS_AT,
    SEQUENCE_AT,
    TRANSACTIONAL,
)
from penstock.kernel.sinks cimport PARTITIONER_DECIDES, RecordTaker, find_bytes
from penstock.kernel.varints cimport put_varint

from crc32c import crc32c

from penstock.kernel.compression import CODECS

cdef enum:
    MAGIC = 2
    NO_LEADER_EPOCH = -1
    # The maximum size of a number.
    VARINT_BYTES = 10
    FIRST_CAPACITY = 16384
    NONE = -1  # the size of a key or value that is None

NO_HEADERS = b"\0"


cdef inline int varint_size(int64_t number) noexcept nogil:
    cdef uint64_t rest = (<uint64_t>number << 1) ^ <uint64_t>(number >> 63)
    cdef int size = 1
    while rest > 127:
        size += 1
        rest >>= 7
    return size


cdef inline void put_big_endian(uint8_t *at, uint64_t number, int size) noexcept nogil:
    cdef int index
    for index in range(size):
        at[index] = <uint8_t>(number >> 8 * (size - 1 - index))


cdef struct record:
    # A record to append. It only points to key and value until then; the headers are encoded with their count.
    const char *key
    Py_ssize_t key_size
    const char *value
    Py_ssize_t value_size
    const char *headers
    Py_ssize_t headers_size
    int64_t timestamp


cdef bytes encoded_headers(headers):
    """Return the bytes of headers. Raises TypeError for anything else; a value may be None, but not a name."""
    cdef uint8_t number[VARINT_BYTES]
    parts = [PyBytes_FromStringAndSize(<char *>number, put_varint(number, len(headers)) - number)]
    for name, value in headers:
        if name is None:
            raise TypeError("the name of a header is None")
        for data in (name, value):
            if type(data) is str:
                data = data.encode()
            if data is None:
                parts.append(PyBytes_FromStringAndSize(<char *>number, put_varint(number, NONE) - number))
            else:
                data = bytes(<bytes?>data)
                parts += (PyBytes_FromStringAndSize(<char *>number, put_varint(number, len(data)) - number), data)
    return b"".join(parts)


@cython.final
cdef class ProducerBatch:
    """Records of one partition that are written together or not at all (Kafka: ProducerBatch).

    sources: see Writer.produce, of each record; None if no record has one.
    created_ms: when its first record was added, set by the sender. stamp: producer id, epoch and sequence number with
    which it was sent, by which brokers recognize a retry; None before that. is_uncertain: whether it may have been
    written although it was not acknowledged.
    """

    cdef uint8_t *data
    cdef Py_ssize_t used, capacity
    cdef readonly int32_t count
    cdef int64_t first_timestamp, max_timestamp
    cdef int16_t codec
    cdef bytes packed
    cdef readonly list sources
    cdef public int64_t created_ms
    cdef public object stamp
    cdef public bint is_uncertain

    def __dealloc__(self):
        free(self.data)

    @property
    def size(self):
        """Size in bytes before compression, including the header."""
        return RECORDS_AT + self.used

    @property
    def packed_size(self):
        """Size in bytes of a packed batch, as returned by sealed()."""
        return RECORDS_AT + PyBytes_GET_SIZE(self.packed)

    cdef Py_ssize_t size_of(self, const record *added) noexcept nogil:
        """Return the size of a record in this batch, without its length prefix."""
        cdef Py_ssize_t size = 1 + varint_size(added.timestamp - self.first_timestamp if self.count else 0)
        size += varint_size(self.count) + varint_size(added.key_size) + varint_size(added.value_size)
        return size + max(added.key_size, 0) + max(added.value_size, 0) + added.headers_size

    cdef int put(self, const record *added, Py_ssize_t size, source) except -1:
        """Append a record; size: that of size_of."""
        cdef uint8_t *at
        self.make_room(size + VARINT_BYTES)
        if source is not None and self.sources is None:
            self.sources = [None] * self.count
        if self.sources is not None:
            self.sources.append(source)
        if self.count == 0:
            self.first_timestamp = self.max_timestamp = added.timestamp
        elif added.timestamp > self.max_timestamp:
            self.max_timestamp = added.timestamp
        at = put_varint(self.data + self.used, size)
        at[0] = 0  # attributes
        at = put_varint(at + 1, added.timestamp - self.first_timestamp)
        at = put_varint(at, self.count)
        at = put_varint(at, added.key_size)
        if added.key_size > 0:
            memcpy(at, added.key, added.key_size)
            at += added.key_size
        at = put_varint(at, added.value_size)
        if added.value_size > 0:
            memcpy(at, added.value, added.value_size)
            at += added.value_size
        memcpy(at, added.headers, added.headers_size)
        self.used = at + added.headers_size - self.data
        self.count += 1
        return 0

    cdef int make_room(self, Py_ssize_t size) except -1:
        cdef Py_ssize_t capacity = max(self.capacity, <Py_ssize_t>FIRST_CAPACITY)
        cdef uint8_t *grown
        if self.used + size <= self.capacity:
            return 0
        while capacity < self.used + size:
            capacity *= 2
        grown = <uint8_t *>realloc(self.data, capacity)
        if grown is NULL:
            raise MemoryError(f"{capacity} bytes for a batch of records")
        self.data, self.capacity = grown, capacity
        return 0

    def add(self, key, value, int64_t timestamp, headers, source=None):
        """Append a record of any size. key, value: bytes or None."""
        cdef record added
        cdef bytes encoded
        fill(&added, <bytes>key, <bytes>value, timestamp)
        encoded = encoded_headers(headers) if headers else NO_HEADERS
        added.headers, added.headers_size = PyBytes_AS_STRING(encoded), PyBytes_GET_SIZE(encoded)
        self.put(&added, self.size_of(&added), source)

    def pack(self, str compression_type not None):
        """Compress the records. No record may be added afterwards."""
        if self.packed is None:
            codec = CODECS[compression_type]
            self.codec = codec.number
            self.packed = bytes(codec.compress(memoryview(<uint8_t[:self.used]>self.data) if self.used else b""))
            free(self.data)
            self.data, self.capacity = NULL, 0

    def sealed(self, int64_t producer_id, int16_t epoch, int32_t sequence, bint in_transaction):
        """Return the bytes of the packed batch: header and records. sequence: sequence number of its first record."""
        header = PyBytes_FromStringAndSize(NULL, RECORDS_AT)
        cdef uint8_t *at = <uint8_t *>PyBytes_AS_STRING(header)
        put_big_endian(at, 0, LENGTH_AT)
        put_big_endian(at + LENGTH_AT, RECORDS_AT - BEFORE_LENGTH + PyBytes_GET_SIZE(self.packed), 4)
        put_big_endian(at + LEADER_EPOCH_AT, <uint64_t>NO_LEADER_EPOCH, 4)
        at[MAGIC_AT] = MAGIC
        put_big_endian(at + ATTRIBUTES_AT, self.codec | (TRANSACTIONAL if in_transaction else 0), 2)
        put_big_endian(at + LAST_OFFSET_DELTA_AT, self.count - 1, 4)
        put_big_endian(at + FIRST_TIMESTAMP_AT, <uint64_t>self.first_timestamp, 8)
        put_big_endian(at + MAX_TIMESTAMP_AT, <uint64_t>self.max_timestamp, 8)
        put_big_endian(at + PRODUCER_ID_AT, <uint64_t>producer_id, 8)
        put_big_endian(at + EPOCH_AT, <uint64_t>epoch, 2)
        put_big_endian(at + SEQUENCE_AT, <uint64_t>sequence, 4)
        put_big_endian(at + COUNT_AT, self.count, 4)
        checksum = crc32c(self.packed, crc32c(memoryview(header)[ATTRIBUTES_AT:]))
        put_big_endian(at + CRC_AT, checksum, 4)
        return header + self.packed


cdef int fill(record *to, bytes key, bytes value, int64_t timestamp) except -1:
    to.key, to.key_size = NULL, NONE
    to.value, to.value_size = NULL, NONE
    if key is not None:
        to.key, to.key_size = PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
    if value is not None:
        to.value, to.value_size = PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)
    to.timestamp = timestamp
    return 0


@cython.final
cdef class PartitionRecords:
    """A partition that is written to, and its growing batch. queue: for the sender's own use.

    number: number of batches begun so far.
    """

    cdef TopicRecords of
    cdef readonly int32_t index
    cdef readonly ProducerBatch growing
    cdef readonly int64_t number
    cdef public object queue

    @property
    def topic(self):
        """The topic's name."""
        return self.of.name

    def close(self):
        """Close and return the growing batch, None if there is none. The next record begins a new one."""
        batch, self.growing = self.growing, None
        if self.of.sticky == self.index:
            self.of.sticky = (self.index + 1) % self.of.count
        return batch


@cython.final
cdef class TopicRecords:
    """A topic's partitions. sticky: the one that gets records without a key, until its batch is closed (KIP-480).

    count: the current number of partitions. The list may have more, whose records are still sent if they reappear.
    """

    cdef str name
    cdef list partitions
    cdef int32_t sticky, count


@cython.final
cdef class RecordAccumulator(RecordTaker):
    """The growing batches of all partitions (Kafka: RecordAccumulator). Only one thread may use it.

    batch_bytes: a batch is closed before a record would make it larger. record_bytes: the maximum size of a batch with
    one record, before compression. on_full: called with a PartitionRecords, whose batch it must close. now_ms: the wall
    clock, for records without a timestamp. seed: selects the first partition for records without keys.
    """

    cdef Py_ssize_t batch_bytes, record_bytes
    cdef object on_full, now_ms
    cdef int32_t seed
    cdef dict topics
    cdef str last_name
    cdef TopicRecords last_topic
    #: PartitionRecords whose batch was begun since the sender last emptied this list.
    cdef readonly list begun

    def __init__(self, Py_ssize_t batch_bytes, Py_ssize_t record_bytes, on_full, now_ms, int32_t seed=0):
        self.batch_bytes = min(batch_bytes, record_bytes)
        self.record_bytes = record_bytes
        self.on_full = on_full
        self.now_ms = now_ms
        self.seed = seed
        self.topics = {}
        self.begun = []

    def know(self, str topic not None, int32_t count):
        """Set a topic's number of partitions, which may shrink. Returns the new PartitionRecords."""
        cdef TopicRecords known = self.topics.get(topic)
        cdef PartitionRecords partition
        if known is None:
            known = self.topics[topic] = TopicRecords.__new__(TopicRecords)
            known.name = topic
            known.partitions = []
            known.sticky = self.seed % count
        known.count = count
        known.sticky = known.sticky % count
        new = []
        for index in range(len(known.partitions), count):
            partition = PartitionRecords.__new__(PartitionRecords)
            partition.of = known
            partition.index = index
            new.append(partition)
        known.partitions += new
        return new

    def partition_count(self, str topic not None):
        """Return a topic's number of partitions, 0 for an unknown topic."""
        return self.partitions(topic)

    def offer(self, str topic not None, int32_t partition, key, value, timestamp, headers, source=None):
        """Take a record, from Python; returns whether it was taken."""
        return self.take(topic, partition, key, value, self.now() if timestamp is None else timestamp, headers, source)

    cdef int64_t now(self) except? -1:
        return self.now_ms()

    cdef int32_t partitions(self, str topic) except -1:
        cdef TopicRecords known = self.topic(topic)
        return 0 if known is None else known.count

    cdef TopicRecords topic(self, str name):
        if name is not self.last_name:
            self.last_topic = self.topics.get(name)
            self.last_name = None if self.last_topic is None else name
        return self.last_topic

    cdef bint take(self, str topic, int32_t partition, key, value, int64_t timestamp, headers, source) except -1:
        """Take a record, unless its topic or partition is unknown or it is too large; returns whether it was taken."""
        cdef record added
        cdef bytes encoded
        cdef bint is_sticky = False
        cdef TopicRecords to = self.topic(topic)
        if to is None:
            return False
        added.key, added.key_size = NULL, NONE
        added.value, added.value_size = NULL, NONE
        if key is not None and not find_bytes(key, &added.key, &added.key_size):
            return False
        if type(value) is bytes:
            added.value, added.value_size = PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)
        elif value is not None:
            return False
        if partition == PARTITIONER_DECIDES:
            is_sticky = added.key_size < 0
            if is_sticky:
                partition = to.sticky
            else:
                partition = partition_of(added.key, added.key_size, to.count)
        elif not 0 <= partition < to.count:
            return False
        encoded = encoded_headers(headers) if headers else NO_HEADERS
        added.headers, added.headers_size = PyBytes_AS_STRING(encoded), PyBytes_GET_SIZE(encoded)
        added.timestamp = timestamp
        return self.append(<PartitionRecords>to.partitions[partition], is_sticky, &added, source)

    cdef bint append(self, PartitionRecords to, bint is_sticky, const record *added, source) except -1:
        cdef ProducerBatch batch = to.growing
        cdef Py_ssize_t size
        while batch is not None:
            size = batch.size_of(added)
            if RECORDS_AT + batch.used + varint_size(size) + size <= self.batch_bytes:
                break
            self.on_full(to)
            if is_sticky:  # the record and those after it go to the next partition
                to = <PartitionRecords>to.of.partitions[to.of.sticky]
            batch = to.growing
        if batch is None:
            batch = ProducerBatch.__new__(ProducerBatch)
            size = batch.size_of(added)
            if RECORDS_AT + varint_size(size) + size > self.record_bytes:
                return False
            to.growing = batch
            to.number += 1
            self.begun.append(to)
        batch.put(added, size, source)
        return True
