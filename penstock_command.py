"""Where the installed ``penstock`` command begins: outside the package, whose import takes a moment."""

import os
import signal
import sys

from penstock_distribution import DistributionConflictError, check_distributions

#: supervisor.exit_codes' USAGE: a person has to look. The package cannot be asked: it may be another distribution's.
EXIT_USAGE = 2


def main() -> None:
    """Run the command; never returns. Ctrl-C while it is imported ends it without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as in the background of a shell
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        check_distributions(os.path.dirname(os.path.abspath(__file__)))
    except DistributionConflictError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    from penstock.cli import main as command

    command()
