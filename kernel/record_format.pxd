cdef enum:
    # Offsets of the fields in a record batch (message format v2; Kafka: DefaultRecordBatch).
    LENGTH_AT = 8
    LEADER_EPOCH_AT = 12
    MAGIC_AT = 16
    CRC_AT = 17
    ATTRIBUTES_AT = 21
    LAST_OFFSET_DELTA_AT = 23
    FIRST_TIMESTAMP_AT = 27
    MAX_TIMESTAMP_AT = 35
    PRODUCER_ID_AT = 43
    EPOCH_AT = 51
    SEQUENCE_AT = 53
    COUNT_AT = 57
    RECORDS_AT = 61
    # Bit of its attributes: written in a transaction.
    TRANSACTIONAL = 16
    # Size of the fields that its length does not count: offset and length.
    BEFORE_LENGTH = 12
