"""Where the installed ``penstock`` command begins: outside the package, whose import takes a moment."""

import os
import signal
import sys

from penstock_distribution import DistributionConflictError, MissingKernelError, check_distributions

#: supervisor.exit_codes' USAGE and INSTALLATION: a person has to look. The package cannot be asked: it may be another
#: distribution's, and without its kernel it cannot be imported.
EXIT_USAGE, EXIT_INSTALLATION = 2, 8


def main() -> None:
    """Run the command; never returns. Ctrl-C while it is imported ends it without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as in the background of a shell
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        check_distributions(os.path.dirname(os.path.abspath(__file__)))
    except DistributionConflictError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    try:
        from penstock.cli import main as command
    except MissingKernelError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(EXIT_INSTALLATION)

    command()
