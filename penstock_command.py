"""Where the installed ``penstock`` command begins: outside the package, whose import takes a moment."""

import signal


def main() -> None:
    """Run the command; never returns. Ctrl-C while it is imported ends it without a traceback."""
    taken = signal.getsignal(signal.SIGINT)  # ignored in the background of a shell
    if taken is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from penstock.cli import main as command

    signal.signal(signal.SIGINT, taken)
    command()
