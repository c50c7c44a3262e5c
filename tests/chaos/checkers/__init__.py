"""The judges of a run, beside the ledger: transactions from the log, stuck records, queries, final tables.

They share no code with Penstock, except ``final_tables``, whose oracle is Penstock's test driver. The driver itself is
compared with Kafka Streams' recorded results (``tests/goldens``).
"""

from tests.chaos.checkers.report import Report

__all__ = ["Report"]
