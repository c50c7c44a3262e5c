"""What a run is judged by, beside the ledger: transactions as the log has them, stuck records, queries, final tables.

Nothing here shares code with Penstock, except ``final_tables``, whose oracle is Penstock's test driver: that one is
held against Kafka Streams' recorded results (``tests/goldens``).
"""

from tests.chaos.checkers.report import Report

__all__ = ["Report"]
