"""``python -m penstock.testing.broker --port N``: what ``penstock broker start --in-memory`` runs in the background."""

from __future__ import annotations

import argparse
import signal

from .embedded_kafka import EmbeddedKafka


def main() -> None:
    """Serve until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m penstock.testing.broker", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="on 127.0.0.1 (any free one)")
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # before there are other threads
    with EmbeddedKafka(port=parser.parse_args().port) as kafka:
        print(f"Serves {kafka.bootstrap_servers}", flush=True)
        signal.sigwait(ends)


main()
