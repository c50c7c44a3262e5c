"""The forms in which TopologyTestDriver shows the values of stores; see penstock.topology.context.store_facades."""

from __future__ import annotations

from penstock.topology.context.store_facades import View
from penstock.topology.records import AggregationWithHeaders, ValueAndTimestamp, ValueTimestampHeaders

#: The timestamp of rows that a test writes (Kafka: ConsumerRecord.NO_TIMESTAMP).
NO_TIMESTAMP = -1

PLAIN = View(lambda row: row[0], lambda value: ValueAndTimestamp(value, NO_TIMESTAMP))
PLAIN_OF_HEADERS = View(lambda row: row[0], lambda value: ValueTimestampHeaders(value, NO_TIMESTAMP))
TIMESTAMPED_OF_HEADERS = View(lambda row: ValueAndTimestamp(*row[:2]), lambda value: ValueTimestampHeaders(*value))
AGGREGATION = View(lambda row: row[0], AggregationWithHeaders)
#: Operators keep no headers, in any format: see StoreBuilder.keeps_headers.
WITH_HEADERS = View(lambda row: ValueTimestampHeaders(*row), lambda value: ValueAndTimestamp(*value[:2]))
AGGREGATION_WITH_HEADERS = View(AggregationWithHeaders, lambda value: value[0])
