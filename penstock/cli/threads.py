"""``penstock threads add|remove|restart``, ``penstock pause``, ``penstock resume``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from penstock.cli.options import Settings, as_json, configuration, examples, print_json
from penstock.cli.running_application import ANSWER_SECONDS, RunningApplication, application


def _waits(command: Callable[..., None]) -> Callable[..., None]:
    """Add --timeout."""
    return click.option(
        "--timeout",
        type=click.FloatRange(min=0),
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help="Seconds to wait for a thread to close.",
    )(command)


@click.group(
    epilog=examples(
        "penstock threads add",
        "penstock threads remove                      the last one",
        "penstock threads restart 2",
    )
)
def threads() -> None:
    """Add, remove and restart stream threads."""


@threads.command(epilog=examples("penstock threads add", "penstock threads add --config penstock.toml"))
@configuration
@as_json
def add(settings: Settings, json_output: bool) -> None:
    """Start one more stream thread (KIP-663). The next start uses num.stream.threads again."""
    with application(settings) as running:
        done = running.ask("add_thread")
    _say(done, json_output, f"Added {_short(done['thread'])}; it gets tasks in the next rebalance.")


@threads.command(epilog=examples("penstock threads remove", "penstock threads remove 2"))
@click.argument("thread", required=False)
@configuration
@as_json
@_waits
def remove(thread: str | None, settings: Settings, json_output: bool, timeout: float) -> None:
    """Stop a stream thread and wait for its end (KIP-663).

    THREAD is its number or name in `penstock status`; default: the last one. Its tasks move to other threads.
    """
    named = {} if thread is None else {"name": thread}
    with application(settings) as running:
        done = _ask(running, "remove_thread", timeout, **named)
    _say(done, json_output, f"Removed {_short(done['thread'])}.")


@threads.command(epilog=examples("penstock threads restart 2", "penstock threads restart --all"))
@click.argument("thread", required=False)
@configuration
@as_json
@_waits
@click.option("--all", "all_threads", is_flag=True, help="Restart all threads, one after the other.")
def restart(thread: str | None, settings: Settings, json_output: bool, timeout: float, all_threads: bool) -> None:
    """Restart a stream thread: it commits and closes, and a new process resumes its tasks.

    THREAD is its number or name in `penstock status`.
    """
    if (thread is None) is not all_threads:
        raise click.UsageError("Name one thread, as `penstock status` shows it, or give --all.")
    with application(settings) as running:
        names = [each["name"] for each in running.ask("status")["threads"]] if thread is None else [thread]
        for name in names:
            done = _ask(running, "restart_thread", timeout, name=name)
            _say(done, json_output, _restarted(done))


def _restarted(done: dict[str, Any]) -> str:
    old, new = done["old_pid"], done["pid"]
    then = f"process {new} has replaced it" if new is not None else "another process replaces it"
    closed = f"process {old} has closed, " if old is not None else ""
    return f"Restarted {_short(done['thread'])}: {closed}{then}."


@click.command(epilog=examples("penstock pause", "penstock pause --config penstock.toml"))
@configuration
@as_json
def pause(settings: Settings, json_output: bool) -> None:
    """Stop processing until resume or the next start; the application stays in its group (KIP-834)."""
    with application(settings) as running:
        done = running.ask("pause")
    text = "Paused: nothing is processed until `penstock resume` or the next start; the application stays in its group."
    _say(done, json_output, text)


@click.command(epilog=examples("penstock resume", "penstock resume --config penstock.toml"))
@configuration
@as_json
def resume(settings: Settings, json_output: bool) -> None:
    """Continue after a pause."""
    with application(settings) as running:
        done = running.ask("resume")
    _say(done, json_output, "Resumed.")


def _ask(running: RunningApplication, command: str, timeout: float, **arguments: object) -> Any:
    return running.ask(command, {**arguments, "timeout": timeout}, timeout=timeout + ANSWER_SECONDS)


def _say(done: object, json_output: bool, text: str) -> None:
    if json_output:
        print_json(done)
    else:
        click.echo(text)


def _short(name: str) -> str:
    """Return the short form of a thread's name, e.g. StreamThread-2."""
    return "-".join(name.rsplit("-", 2)[1:])
