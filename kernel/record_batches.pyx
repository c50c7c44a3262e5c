"""Parses Fetch responses into partitions, record batches and records.

The formats are those of Kafka's protocol (FetchResponse.json, versions 12 to 17) and of its record batches (message
format v2; Kafka: DefaultRecordBatch, DefaultRecord). The bytes come from the network, so every length is checked.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, INT64_MIN, int8_t, int16_t, int32_t, int64_t, uint8_t, uint64_t

from penstock.kernel.messages cimport Message, Origin, key_from
from penstock.kernel.record_format cimport (
    ATTRIBUTES_AT,
    BEFORE_LENGTH,
    COUNT_AT,
    CRC_AT,
    FIRST_TIMESTAMP_AT,
    LAST_OFFSET_DELTA_AT,
    LEADER_EPOCH_AT,
    LENGTH_AT,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    PRODUCER_ID_AT,
    RECORDS_AT,
    TRANSACTIONAL,
)
from penstock.kernel.varints cimport take_varint

from crc32c import crc32c

from penstock.kernel.compression import BROKEN_DATA_ERRORS, LargeBlockError, decompression

cdef enum:
    # Bits of a batch's attributes.
    CODEC = 7
    LOG_APPEND_TIME = 8
    CONTROL = 32
    # Kinds of control records, and of timestamps as librdkafka counts them.
    ABORT = 0
    CREATED = 1
    APPENDED = 2
    # Tags of the optional fields of a partition's response.
    DIVERGING_EPOCH = 0
    CURRENT_LEADER = 1
    # How many bytes are decompressed at once, and the most bytes of a varint.
    PIECE_BYTES = 1 << 20
    VARINT_BYTES = 10
    # The first version that has a topic's id instead of its name, and the size of the id.
    TOPIC_IDS = 13
    ID_BYTES = 16


class UnknownFormatError(Exception):
    """Records in a format that is not supported: an old message format, or an unknown codec."""


class CorruptRecordsError(Exception):
    """Bytes that are not record batches, or whose checksum does not match (Kafka: CorruptRecordException)."""


class LargeRecordError(Exception):
    """Records that decompress to more bytes than the reader takes, or than there is memory for."""


cdef int64_t big_endian(const uint8_t *at, int size) noexcept nogil:
    cdef uint64_t value = 0
    cdef int index
    for index in range(size):
        value = value << 8 | at[index]
    return <int64_t>value


cdef inline int16_t int16_at(const uint8_t *at) noexcept nogil:
    return <int16_t>big_endian(at, 2)


cdef inline int32_t int32_at(const uint8_t *at) noexcept nogil:
    return <int32_t>big_endian(at, 4)


cdef inline int64_t int64_at(const uint8_t *at) noexcept nogil:
    return big_endian(at, 8)


cdef inline int64_t varint(const uint8_t **at, const uint8_t *end) noexcept nogil:
    """Return a zigzag varint and advance at; INT64_MIN, which is never a valid length, if the varint does not end."""
    cdef int64_t number
    if take_varint(at, end, &number):
        return number
    at[0] = end
    return INT64_MIN


cdef inline bint follows(int64_t size, const uint8_t *at, const uint8_t *end) noexcept nogil:
    return 0 <= size <= end - at


cdef class RecordBatches:
    """A partition's record batches in one response, which are parsed lazily (Kafka: CompletedFetch).

    data: the response; start, size: the position of the batches in it, of which the last may be incomplete. offset:
    that of the first wanted record; a batch may begin before it. aborted: (producer id, first offset) of the aborted
    transactions, whose records are skipped; None: no record is skipped (read_uncommitted). checked: verify checksums.
    largest: the most bytes that a compressed record may have. A batch is decompressed in pieces, so that it takes no
    more memory than its largest record and one piece, however many bytes it expands to.

    next_offset: the offset after all batches. leader_epoch: that of the last batch, -1 if there are none. epochs:
    (first offset, leader epoch) of each batch whose epoch differs from that of the previous batch. Raises
    UnknownFormatError for the format of the first batch, CorruptRecordsError if no batch is complete.
    """

    cdef Origin origin
    cdef const uint8_t[::1] data
    cdef object view  # of the data, for functions that need a buffer
    cdef Py_ssize_t at, end  # of the batches that follow the open one
    cdef int64_t offset
    cdef list aborted
    cdef set aborting
    cdef bint checked
    cdef readonly int64_t next_offset
    cdef readonly int32_t leader_epoch
    cdef readonly list epochs
    cdef readonly int64_t taken_bytes
    # The open batch.
    cdef object decompressing  # the source of further records, None if records has all of them
    cdef object failure  # why there are no further ones
    cdef int64_t largest
    cdef const uint8_t[::1] records  # owns the bytes
    cdef const uint8_t *record
    cdef const uint8_t *records_end
    cdef int32_t left
    cdef int64_t first_offset, first_timestamp, append_time
    cdef bint appended

    def __init__(self, Origin origin not None, data, Py_ssize_t start, Py_ssize_t size, int64_t offset, aborted, bint checked, int64_t largest=INT64_MAX):
        self.origin = origin
        self.data = data
        self.view = memoryview(data)
        if start < 0 or size < 0 or start > len(self.view) - size:
            raise CorruptRecordsError(f"the response is too short for {size} bytes of records")
        self.at = start
        self.offset = offset
        self.aborted = None if aborted is None else sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
        self.aborting = set()
        self.checked = checked
        self.largest = largest
        self.left = 0
        self.next_offset = offset
        self.leader_epoch = -1
        self.epochs = []
        self.end = self.look_ahead(start + size)

    cdef Py_ssize_t look_ahead(self, Py_ssize_t end) except -1:
        """Return the end of the complete batches; set next_offset and the leader epochs from their headers."""
        cdef Py_ssize_t at = self.at
        cdef const uint8_t *batch
        cdef int64_t size
        cdef int32_t epoch
        while end - at > MAGIC_AT:
            batch = &self.data[at]
            if batch[MAGIC_AT] != 2:
                if at > self.at:
                    break  # the batches before it are read first; the next response begins with this one
                raise UnknownFormatError(f"records of the message format v{batch[MAGIC_AT]}")
            size = <int64_t>int32_at(batch + LENGTH_AT) + BEFORE_LENGTH
            if end - at < RECORDS_AT or size < RECORDS_AT or size > end - at:
                break
            self.next_offset = int64_at(batch) + int32_at(batch + LAST_OFFSET_DELTA_AT) + 1
            epoch = int32_at(batch + LEADER_EPOCH_AT)
            if epoch != self.leader_epoch:
                self.epochs.append((int64_at(batch), epoch))
            self.leader_epoch = epoch
            at += size
        if at == self.at and at < end:
            raise CorruptRecordsError(f"the {end - at} bytes at offset {self.offset} are not a record batch")
        return at

    @property
    def finished(self):
        """Whether all records have been taken."""
        return self.left == 0 and self.at >= self.end

    def take(self, list run not None, Py_ssize_t limit, int64_t limit_bytes=INT64_MAX):
        """Append up to limit records to run, as Messages, and return their number; taken_bytes has their size.

        limit_bytes: no further record is taken once those before it have as many. An error is raised only by the call
        that has no records to return before it.

        Raises CorruptRecordsError, LargeRecordError, and UnknownFormatError for a codec.
        """
        cdef Py_ssize_t before = len(run), wanted = before + limit
        cdef int64_t left_bytes = limit_bytes
        try:
            while len(run) < wanted and left_bytes > 0 and (self.left or self.begin_batch()):
                self.take_from_batch(run, wanted - len(run), &left_bytes)
        except (CorruptRecordsError, LargeRecordError, UnknownFormatError):
            if len(run) == before:
                raise
            # The next call raises it again, because it begins with the same record.
        finally:
            self.taken_bytes = limit_bytes - left_bytes
        return len(run) - before

    cdef bint begin_batch(self) except -1:
        """Open the next batch that has wanted records; return False if there is none."""
        cdef const uint8_t *batch
        cdef Py_ssize_t size
        cdef int16_t attributes
        while self.at < self.end:
            batch = &self.data[self.at]
            size = int32_at(batch + LENGTH_AT) + BEFORE_LENGTH
            attributes = int16_at(batch + ATTRIBUTES_AT)
            if self.checked and crc32c(self.view[self.at + ATTRIBUTES_AT:self.at + size]) != big_endian(batch + CRC_AT, 4):
                raise CorruptRecordsError(f"the checksum of the record batch at offset {int64_at(batch)} does not match")
            if self.is_wanted(batch, attributes, size):
                self.open_batch(batch, attributes, size)
                self.at += size
                return True
            self.at += size
        return False

    cdef bint is_wanted(self, const uint8_t *batch, int16_t attributes, Py_ssize_t size) except -1:
        """Return whether a batch has records for the application; track which producers' transactions were aborted."""
        cdef int64_t last = int64_at(batch) + int32_at(batch + LAST_OFFSET_DELTA_AT)
        cdef int64_t producer = int64_at(batch + PRODUCER_ID_AT)
        if self.aborted is not None:
            while self.aborted and self.aborted[-1][1] <= last:
                self.aborting.add(self.aborted.pop()[0])
            if attributes & CONTROL and control_type(batch + RECORDS_AT, batch + size) == ABORT:
                self.aborting.discard(producer)
            elif attributes & TRANSACTIONAL and producer in self.aborting:
                return False
        return not attributes & CONTROL and last >= self.offset and int32_at(batch + COUNT_AT) > 0

    cdef int open_batch(self, const uint8_t *batch, int16_t attributes, Py_ssize_t size) except -1:
        cdef int codec = attributes & CODEC
        records = self.view[self.at + RECORDS_AT:self.at + size]
        self.decompressing = self.failure = None
        if codec:
            try:
                self.decompressing = decompression(codec, records, self.largest)
            except KeyError:
                raise UnknownFormatError(f"records compressed with codec {codec}") from None
            records = b""
        self.use(records)
        self.first_offset = int64_at(batch)
        self.first_timestamp = int64_at(batch + FIRST_TIMESTAMP_AT)
        self.appended = attributes & LOG_APPEND_TIME
        self.append_time = int64_at(batch + MAX_TIMESTAMP_AT)
        self.left = int32_at(batch + COUNT_AT)
        return 0

    cdef int use(self, records) except -1:
        """Continue with these bytes of the open batch."""
        self.records = records
        self.record = &self.records[0] if len(self.records) else NULL
        self.records_end = self.record + len(self.records)
        return 0

    cdef int take_from_batch(self, list run, Py_ssize_t limit, int64_t *left_bytes) except -1:
        cdef const uint8_t *at = self.record
        cdef const uint8_t *end
        cdef Message message
        cdef int64_t size
        while self.left > 0 and limit > 0 and left_bytes[0] > 0:
            size = varint(&at, self.records_end)
            if size < 1 or not follows(size, at, self.records_end):
                if not self.decompress_more(size, at):
                    raise self.corrupt()
                at = self.record
                continue
            end = at + size
            at += 1  # the record's attributes, which are unused
            message = Message.__new__(Message)
            message._origin = self.origin
            message._timestamp_type = APPENDED if self.appended else CREATED
            size = varint(&at, end)
            message._timestamp = self.append_time if self.appended else self.first_timestamp + size
            message._offset = self.first_offset + varint(&at, end)
            message._key = self.key_of(&at, end)
            message._value = self.bytes_of(&at, end)
            message._headers = None if at < end and at[0] == 0 else self.headers_of(&at, end)
            if message._offset >= self.offset:
                run.append(message)
                limit -= 1
                left_bytes[0] -= end - self.record
            self.record = at = end
            self.left -= 1
        return 0

    cdef bint decompress_more(self, int64_t size, const uint8_t *at) except -1:
        """Decompress another piece, or as many as the next record needs; return False if that cannot complete it.

        size: of this record, INT64_MIN if only part of its length is there; at: behind its length.
        """
        cdef Py_ssize_t have = self.records_end - self.record
        if self.decompressing is None or (have >= VARINT_BYTES if size == INT64_MIN else size < 1):
            return False
        if self.failure is None:
            try:
                if size > self.largest:
                    raise LargeBlockError(f"a record of {size:,} bytes")
                self.use(self.next_pieces(0 if size == INT64_MIN else size + (at - self.record)))
                return True
            except LargeBlockError as error:
                self.failure = self.too_large(str(error))
            except MemoryError:
                self.failure = self.too_large("more bytes than there is memory for")
            except BROKEN_DATA_ERRORS as error:
                self.failure = self.broken(error)
        raise self.failure

    cdef object next_pieces(self, int64_t wanted):
        """Return the rest of the current piece and at least one more; wanted: how many bytes, if there are as many."""
        cdef Py_ssize_t have = self.records_end - self.record
        cdef list pieces = [PyBytes_FromStringAndSize(<const char *>self.record, have)] if have else []
        while True:
            piece = self.decompressing.read(PIECE_BYTES)
            if not len(piece):
                self.decompressing = None
                break
            pieces.append(piece)
            have += len(piece)
            if have >= wanted:
                break
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    cdef object broken(self, error):
        what = str(error) or type(error).__name__
        return CorruptRecordsError(f"the record batch at offset {self.first_offset} cannot be decompressed: {what}")

    cdef object too_large(self, what):
        return LargeRecordError(
            f"the record batch at offset {self.first_offset} decompresses to {what}; the limit is {self.largest:,} bytes"
        )

    cdef object corrupt(self):
        return CorruptRecordsError(f"a record of the batch at offset {self.first_offset} has a wrong length")

    cdef object bytes_of(self, const uint8_t **at, const uint8_t *end):
        cdef int64_t size = varint(at, end)
        if size == -1:
            return None
        if not follows(size, at[0], end):
            raise self.corrupt()
        found = PyBytes_FromStringAndSize(<const char *>at[0], size)
        at[0] += size
        return found

    cdef object key_of(self, const uint8_t **at, const uint8_t *end):
        cdef int64_t size = varint(at, end)
        if size == -1:
            return None
        if not follows(size, at[0], end):
            raise self.corrupt()
        found = key_from(<const char *>at[0], size, self.origin)
        at[0] += size
        return found

    cdef list headers_of(self, const uint8_t **at, const uint8_t *end):
        cdef int64_t count = varint(at, end)
        cdef list found = []
        if count < 0 or count > end - at[0]:
            raise self.corrupt()
        while count > 0:
            name = self.bytes_of(at, end)
            if name is None:
                raise self.corrupt()
            found.append(((<bytes>name).decode("utf-8", "replace"), self.bytes_of(at, end)))
            count -= 1
        return found or None


cdef int control_type(const uint8_t *at, const uint8_t *end) noexcept:
    """Return the kind of a control batch's only record, -1 if it has none (Kafka: ControlRecordType)."""
    cdef int64_t size = varint(&at, end)
    if size < 1 or not follows(size, at, end):
        return -1
    at += 1
    varint(&at, end)
    varint(&at, end)
    size = varint(&at, end)  # of the key, which has a version and the kind
    return int16_at(at + 2) if size >= 4 and follows(size, at, end) else -1


@cython.final
cdef class PartitionData:
    """One partition in a response. topic: from version 13, its id as bytes; before that, its name.

    aborted: (producer id, first offset) of aborted transactions, None if they were not requested. start, size: position
    of its record batches in the response. leader, leader_epoch: its current leader, -1 if the response does not name
    it. diverging_offset: end offset of the epoch of the last fetched record if the log was truncated since, otherwise
    -1.
    """

    cdef readonly object topic
    cdef readonly int32_t partition
    cdef readonly int error
    cdef readonly int64_t high_watermark, last_stable_offset
    cdef readonly list aborted
    cdef readonly int32_t preferred_replica
    cdef readonly Py_ssize_t start, size
    cdef readonly int32_t leader, leader_epoch
    cdef readonly int64_t diverging_offset


@cython.final
cdef class FetchResponse:
    """A FetchResponse. data: its bytes after the length, which must not change. version: that of the request.

    session_id: the fetch session, 0 if there is none (KIP-227). Raises ValueError if the bytes are not a FetchResponse.
    """

    cdef readonly object data
    cdef readonly int32_t throttle_time_ms, session_id
    cdef readonly int error
    cdef readonly list partitions
    cdef const uint8_t *begin
    cdef const uint8_t *at
    cdef const uint8_t *end

    def __init__(self, data, int version):
        cdef const uint8_t[::1] view = data
        if len(view) == 0:
            raise ValueError("an empty response")
        self.data = data
        self.begin = self.at = &view[0]
        self.end = self.begin + len(view)
        self.partitions = []
        self.number(4)  # the correlation id
        self.skip_tags()
        self.throttle_time_ms = <int32_t>self.number(4)
        self.error = <int>self.number(2)
        self.session_id = <int32_t>self.number(4)
        for _ in range(self.count()):
            topic = self.taken(ID_BYTES) if version >= TOPIC_IDS else self.taken(self.count()).decode()
            for _ in range(self.count()):
                self.partitions.append(self.partition(topic))
            self.skip_tags()

    cdef PartitionData partition(self, object topic):
        cdef PartitionData found = PartitionData.__new__(PartitionData)
        found.topic = topic
        found.partition = <int32_t>self.number(4)
        found.error = <int>self.number(2)
        found.high_watermark = self.number(8)
        found.last_stable_offset = self.number(8)
        self.number(8)  # log start offset
        aborted = self.count()
        found.aborted = None if aborted < 0 else []
        for _ in range(aborted):
            found.aborted.append((self.number(8), self.number(8)))
            self.skip_tags()
        found.preferred_replica = <int32_t>self.number(4)
        found.size = max(self.count(), 0)
        found.start = self.at - self.begin
        self.skip(found.size)
        found.leader = found.leader_epoch = -1
        found.diverging_offset = -1
        for _ in range(self.unsigned()):
            self.tagged(found)
        return found

    cdef int tagged(self, PartitionData found) except -1:
        cdef int64_t tag = self.unsigned(), size = self.unsigned()
        cdef const uint8_t *at = self.at
        self.skip(size)
        if tag == DIVERGING_EPOCH and size >= 12:
            found.diverging_offset = int64_at(at + 4)
        elif tag == CURRENT_LEADER and size >= 8:
            found.leader = int32_at(at)
            found.leader_epoch = int32_at(at + 4)
        return 0

    cdef int skip(self, int64_t size) except -1:
        if not follows(size, self.at, self.end):
            raise ValueError("a response that ends too early")
        self.at += size
        return 0

    cdef bytes taken(self, int64_t size):
        cdef const uint8_t *at = self.at
        self.skip(size)
        return PyBytes_FromStringAndSize(<const char *>at, size)

    cdef int64_t number(self, int size) except? -1:
        """Return a signed number of size bytes."""
        cdef const uint8_t *at = self.at
        self.skip(size)
        cdef int unused = 64 - 8 * size
        return <int64_t>(<uint64_t>big_endian(at, size) << unused) >> unused

    cdef int64_t unsigned(self) except? -1:
        cdef uint64_t value = 0
        cdef int shift = 0
        while shift < 35:
            if self.at >= self.end:
                break
            value |= <uint64_t>(self.at[0] & 127) << shift
            self.at += 1
            if self.at[-1] < 128:
                return <int64_t>value
            shift += 7
        raise ValueError("a varint that does not end")

    cdef int64_t count(self) except? -2:
        """Return the number of entries or bytes that follow, -1 for null."""
        return self.unsigned() - 1

    cdef int skip_tags(self) except -1:
        for _ in range(self.unsigned()):
            self.unsigned()
            self.skip(self.unsigned())
        return 0


def origin_of(str topic not None, int32_t partition):
    """Return the Origin that all messages of a partition share."""
    cdef Origin origin = Origin.__new__(Origin)
    origin.topic = topic
    origin.partition = partition
    return origin
