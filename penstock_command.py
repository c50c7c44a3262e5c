"""Where the installed ``penstock`` command begins: outside the package, whose import takes a moment."""

import signal


def main() -> None:
    """Run the command; never returns. Ctrl-C while it is imported ends it without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as in the background of a shell
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from penstock.cli import main as command

    command()
