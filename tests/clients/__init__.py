"""The Kafka client as users see it when brokers, topics and networks change. Real brokers, `penstock run`.

Tests of known faults are strict expected failures that name the issue; with AssertionError only, so that a test with a
broken set-up still fails.
"""
