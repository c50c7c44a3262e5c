"""``python -m penstock.testing.wire --bootstrap HOST:PORT[,…] --seed N``: runs a random plan until Ctrl-C.

Prints the address for clients, then a line per action.
"""

from __future__ import annotations

import argparse
import signal
import sys

from .plan import Plan
from .proxy import WireProxy


def main() -> None:
    """Run until a signal."""
    parser = argparse.ArgumentParser(prog="python -m penstock.testing.wire", description=__doc__)
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT[,…]", help="of the real cluster, without TLS")
    parser.add_argument("--seed", type=int, help="of the plan; without one everything passes")
    arguments = parser.parse_args()
    plan = Plan(0, ()) if arguments.seed is None else Plan.random(arguments.seed)
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # before the proxy's thread starts, which inherits it
    with WireProxy(arguments.bootstrap, plan.rules, seed=plan.seed, out=sys.stdout) as proxy:
        for rule in plan.rules:
            print(rule)
        print(f"bootstrap.servers={proxy.bootstrap_servers}", flush=True)
        signal.sigwait(signals)


if __name__ == "__main__":
    main()
