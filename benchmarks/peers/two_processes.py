"""Runs a program twice, as two processes, until SIGTERM: its file and its arguments."""

from __future__ import annotations

import signal
import subprocess
import sys


def main(program: list[str]) -> None:
    """Start both, forward SIGTERM, and wait for them; raises SystemExit with the first exit code that is not 0."""
    processes = [subprocess.Popen([sys.executable, *program, str(number)]) for number in range(2)]

    def stop(_signal: int, _frame: object) -> None:
        for process in processes:
            process.terminate()

    signal.signal(signal.SIGTERM, stop)
    codes = [process.wait() for process in processes]
    raise SystemExit(next((code for code in codes if code not in (0, -signal.SIGTERM)), 0))


if __name__ == "__main__":
    main(sys.argv[1:])
