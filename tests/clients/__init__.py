"""What users see of the Kafka client when brokers, topics and networks change. Real brokers, `penstock run`.

Tests of faults that are known are strict expected failures which name the issue; AssertionError only, so that a test
whose stage breaks still fails.
"""
