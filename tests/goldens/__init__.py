"""Compares Penstock with Kafka Streams: recorded cases (penstock-golden/1) are built, run and compared."""
