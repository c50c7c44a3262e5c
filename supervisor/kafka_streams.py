"""KafkaStreams: an application as a program sees it."""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Self, cast

from typing_extensions import TypeVar

from penstock.statestore.directory.state_directory import StateDirectory
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.context.partitioners import Partitioner
from penstock.topology.declare.streams_builder import StreamsBuilder
from penstock.topology.errors import ConfigError, InvalidStateStoreError, ProcessorStateError, StreamsError
from penstock.topology.graph.topology import Topology
from penstock.topology.query.isolation_level import IsolationLevel
from penstock.topology.query.position import Position
from penstock.topology.query.state_query_request import StateQueryRequest
from penstock.topology.query.state_query_result import StateQueryResult
from penstock.topology.records import TaskId
from penstock.topology.serdes.serdes import SerdeLike, Serdes
from penstock.workers.control.messages import LIST_LAGS, AskClientInstanceIds, LagInfo, Query, TaskResults
from penstock.workers.group.streams_metadata import KeyQueryMetadata, StreamsMetadata
from penstock.workers.metrics.sensors import Metric
from penstock.workers.restore.listeners import StandbyUpdateListener, StateRestoreListener

from .application_state import ApplicationState, StateListener
from .control.administration import Administration
from .control.control_actions import actions, sql_action
from .control.control_socket import ControlSocket
from .exit_codes import ExitCode
from .http.forwarding import HttpHosts
from .http.host_watch import HostWatch
from .http.otlp import OtlpMetrics
from .http.server import HttpServer
from .logs.output_stream import open_standard_streams
from .processes.state_cleaner import StateCleaner
from .processes.stream_thread_process import prepare_stream_thread, run_stream_thread
from .processes.uncaught_exception import UncaughtExceptionHandler
from .processes.worker import ThreadStatus
from .processes.worker_process import WorkerTarget
from .queries.admin_telemetry import AdminTelemetry
from .queries.client_instance_ids import ClientInstanceIds
from .queries.metric import client_metrics, metrics
from .queries.queries import Answers
from .queries.queryable_store import Combine, QueryableStore
from .queries.state_query import answered
from .service.signals import blocked, handled
from .source.state_places import warn_of_state_left_behind
from .source.topology_source import TopologySource
from .sql.sql_queries import SqlQuery
from .sql.sql_result import SqlResult
from .supervisor import Supervisor

logger = logging.getLogger(__name__)

#: The type of a store that is read: that of the variable it is assigned to, as in Java, which mypy calls a mistake.
StoreT = TypeVar("StoreT", default=QueryableStore)
R = TypeVar("R")

#: Default time limit of a query.
QUERY_TIMEOUT = timedelta(seconds=10)
#: How long the answer of a stream thread may be on its way, in seconds.
ANSWER_SECONDS = 1.0


class KafkaStreams:
    """Runs a topology on ``num.stream.threads`` processes of this host (Kafka Streams: KafkaStreams).

    topology: "module:attribute" (a Topology, a StreamsBuilder, or a function that returns one), or a Topology. By
    reference each process builds its own; an object is sent to them by value, so it may be created in ``__main__`` or a
    notebook. config: see ``penstock config --all``; application.id and bootstrap.servers are required.

    A script that starts it needs ``if __name__ == "__main__":`` around that, as with multiprocessing: its processes
    import the script. Raises ConfigError and TopologyError. Durations are timedelta or int milliseconds.
    """

    State = ApplicationState

    def __init__(
        self,
        topology: str | Topology | StreamsBuilder,
        config: StreamsConfig | Mapping[str, object],
        *,
        worker_target: WorkerTarget = run_stream_thread,
    ) -> None:
        self._config = StreamsConfig.of(config)
        self._config.require("application.id", "bootstrap.servers")
        application_id: str = self._config["application.id"]
        self._state_directory = _state_directory(self._config)
        process_id = str(self._state_directory.initialize_process_id())
        self._supervisor = Supervisor(
            self._config,
            TopologySource.of(topology),
            worker_target,
            client_id=self._config["client.id"] or f"{application_id}-{process_id}",
            process_id=process_id,
            at_end=self._at_end,
            prepare=prepare_stream_thread if self._config["penstock.worker.spare"] else None,
        )
        #: For the control socket and HTTP.
        hosts = HttpHosts(self._config["penstock.http.token"])
        self._administration = Administration(self._supervisor, self._config, hosts)
        self._http = HttpServer(self._supervisor, self._administration, self._config, hosts)
        commands = {**actions(self._administration), "sql": sql_action(self._http.sql)}
        self._control_socket = ControlSocket(self._state_directory.path, commands)
        self._watch = HostWatch(self._config, self._supervisor.release_host)
        self._supervisor.queries.metadata.on_hosts = self._watch.on_hosts
        self._otlp = OtlpMetrics(self.metrics, self._supervisor.client_id, self._config)
        client_id = self._supervisor.client_id
        self._telemetry = AdminTelemetry(
            lambda: client_metrics(self._supervisor, application_id), f"{client_id}-admin", self._config
        )
        self._cleaner = StateCleaner(
            self._state_directory, self._config, lambda: self.state is ApplicationState.RUNNING
        )

    @property
    def config(self) -> StreamsConfig:
        """The effective configuration."""
        return self._config

    @property
    def state(self) -> ApplicationState:
        """The application's current state."""
        return self._supervisor.states.state

    @property
    def http_port(self) -> int | None:
        """The port of the HTTP server, None without one: see penstock.http.port."""
        return self._http.port

    @property
    def exit_code(self) -> ExitCode:
        """The exit code that ``run`` returns; OK without a failure."""
        return self._supervisor.exit_code

    @property
    def failure_reason(self) -> str:
        """The reason if the exit code is not OK, in one line; "" if it is OK or explains itself."""
        return self._supervisor.reason

    def set_state_listener(self, listener: StateListener | None) -> None:
        """Set ``listener(new, old)``, which is called at each change of state, in the supervisor's thread.

        Raises StreamsError if the application was started already.
        """
        self._check_not_started("the state listener")
        self._supervisor.states.listener = listener

    def set_uncaught_exception_handler(self, handler: UncaughtExceptionHandler) -> None:
        """Set ``handler(StreamThreadError)``, which decides what follows when a stream thread dies of an exception.

        It returns a StreamsUncaughtExceptionHandlerResponse; the default is SHUTDOWN_CLIENT. It runs in the
        supervisor's thread. Raises StreamsError if the application was started already.
        """
        self._check_not_started("the uncaught exception handler")
        self._supervisor.exception_handler = handler

    def set_global_state_restore_listener(self, listener: StateRestoreListener | None) -> None:
        """Set the listener for the restores of all stream threads; None: no listener.

        Its methods are called here, in the supervisor's thread, shortly after the event; exceptions are logged. Raises
        StreamsError if the application was started already.
        """
        self._check_not_started("the state restore listener")
        self._supervisor.restore_listeners.restore = listener

    def set_standby_update_listener(self, listener: StandbyUpdateListener | None) -> None:
        """Set the listener for the updates of standby tasks of all stream threads (KIP-988); None: no listener.

        See set_global_state_restore_listener.
        """
        self._check_not_started("the standby update listener")
        self._supervisor.restore_listeners.standby = listener

    def _check_not_started(self, what: str) -> None:
        if self.state is not ApplicationState.CREATED:
            raise StreamsError(f"Can only set {what} before calling start(). The state is {self.state.name}.")

    def start(self) -> None:
        """Start the stream threads and return; ``state`` and ``status`` show their progress.

        Raises LockError if this host runs the application already, StreamsError if it was started before, or in a
        daemonic process.
        """
        if self.state is not ApplicationState.CREATED:
            raise StreamsError(f"Cannot start: the application is {self.state.name}. Create a new KafkaStreams.")
        if multiprocessing.current_process().daemon:
            self._supervisor.reason = (
                "KafkaStreams cannot run in a daemonic process of multiprocessing, such as a worker of Celery: such a "
                "process may not have child processes. Start it with `penstock run`, or from one that is not daemonic."
            )
            raise StreamsError(self._supervisor.reason)
        # multiprocessing sets and checks this while a new process imports the program's main module.
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise StreamsError(
                "KafkaStreams was started while its own process imported the main module. "
                'Put `if __name__ == "__main__":` around the code that starts it.'
            )
        open_standard_streams()
        self._state_directory.lock_application()
        with blocked():
            try:
                self._http.start()
            except ConfigError:
                self._state_directory.close()
                raise
            self._otlp.start()
            self._telemetry.start()
            self._cleaner.start()
            atexit.register(self.close)
            self._control_socket.start()
            self._supervisor.start()

    def _at_end(self) -> None:
        self._watch.stop()
        self._otlp.stop()
        self._telemetry.stop()
        self._http.stop()
        self._control_socket.stop()
        self._cleaner.stop()
        self._state_directory.close()

    def run(self) -> ExitCode:
        """Start if necessary, and wait for the end; SIGTERM and SIGINT stop the application cleanly.

        Returns the exit code for the program: ``sys.exit(streams.run())``. In the main thread it takes SIGTERM, SIGINT
        and SIGHUP (stop; a second one, a second later, kills), SIGQUIT (kill), SIGTTIN and SIGTTOU (add, remove a
        stream thread), SIGUSR1 (describe), unless they are ignored when it is called.
        """
        with self._signals():
            if self.state is ApplicationState.CREATED:
                self.start()
            self._supervisor.join()
        return self.exit_code

    @contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            logger.warning("run() was called outside the main thread: signals do not reach the application")
            yield
            return
        with handled(self._supervisor.signal):
            yield

    def close(self, timeout: timedelta | int | None = None, *, leave_group: bool = False) -> bool:
        """Stop all stream threads cleanly and wait; may be called again.

        timeout: how long to wait; they are stopped in any case, by force after penstock.shutdown.timeout.ms.
        leave_group: leave the group, so that other members take over at once (KIP-812). Returns False if time ran out.
        """
        atexit.unregister(self.close)
        self._supervisor.shut_down(leave_group)
        return self._supervisor.join(_seconds(timeout))

    def clean_up(self) -> None:
        """Delete the state of all tasks on this host, so that the next start restores it (KafkaStreams.cleanUp).

        Raises StreamsError while the application runs, LockError while another one has the state directory.
        """
        if not (self.state is ApplicationState.CREATED or self.state.has_completed_shutdown):
            raise StreamsError(f"Cannot clean up while the application is {self.state.name}: close() it first.")
        self._state_directory.lock_application()
        try:
            self._state_directory.clean(older_than_ms=-1)
        finally:
            self._state_directory.close()

    def add_stream_thread(self) -> str | None:
        """Start one more stream thread (KIP-663) and wait until it starts; from a listener or handler do not wait.

        Returns its name, None if the application does not run. Raises StreamsError with the reason if it cannot start,
        e.g. because its module cannot be imported; the others continue.
        """
        return self._supervisor.add_thread()

    def remove_stream_thread(self, timeout: timedelta | int | None = None) -> str | None:
        """Stop the last stream thread and wait for its end (KIP-663).

        Returns its name, None if there is none or the application does not run. Raises TimeoutError if it has not ended
        in time; it still ends later.
        """
        return self._supervisor.remove_thread(_seconds(timeout))

    def pause(self, timeout: timedelta | int = QUERY_TIMEOUT) -> None:
        """Stop processing without leaving the group (KIP-834).

        Returns when no stream thread processes records any more. timeout: after it a TimeoutError is raised; a stream
        thread that is still busy then, e.g. with a slow function, pauses after its batch.
        """
        self._supervisor.pause()
        if not self.state.is_running_or_rebalancing:
            return
        try:
            self._supervisor.wait_until_heard(_seconds(timeout))
        except TimeoutError:
            raise TimeoutError("Not all stream threads have paused yet: they will, each after its batch") from None

    @property
    def is_paused(self) -> bool:
        """True from pause() to resume()."""
        return self._supervisor.paused

    def resume(self) -> None:
        """Process again."""
        self._supervisor.resume()

    def status(self) -> list[ThreadStatus]:
        """Return the current status of each stream thread and its process."""
        return self._supervisor.thread_status()

    def metrics(self) -> list[Metric]:
        """Return all current metrics, with Kafka Streams' names, groups and tags: see docs/metrics.md.

        A stream thread that is busy for more than two seconds shows the values of its last report.
        """
        return metrics(self._supervisor, self._config)

    def client_instance_ids(self, timeout: timedelta | int) -> ClientInstanceIds:
        """Return the ids that brokers have given to the clients on this host, which push metrics (KIP-714).

        timeout: for all of them. Raises TimeoutError if a client has none in time, e.g. because no broker has a metrics
        plugin; StreamsError before start() and after the end; ValueError for a negative timeout. Clients of librdkafka,
        and with ``enable.metrics.push=false`` all, are left out.
        """
        seconds = cast("float", _seconds(timeout))
        if seconds < 0:
            raise ValueError("The timeout cannot be negative.")
        if self.state is ApplicationState.CREATED:
            raise StreamsError("KafkaStreams has not been started, you can retry after calling start().")
        if not self.state.is_running_or_rebalancing:
            raise StreamsError(f"KafkaStreams has been stopped ({self.state.name}).")
        until = time.monotonic() + seconds
        timeout_ms = int(seconds * 1000)
        # Stream threads answer when their time is over, too: the answer takes a moment to arrive.
        try:
            results = self._supervisor.ask(
                lambda number: AskClientInstanceIds(number, timeout_ms), Answers(), seconds + ANSWER_SECONDS
            )
        except TimeoutError:
            raise TimeoutError("Not all stream threads have answered: they may be starting, or be busy") from None
        failed = [result.error for result in results if result.error is not None]
        if failed:
            raise TimeoutError("; ".join(failed))
        admin = self._telemetry.client_instance_id(max(until - time.monotonic(), 0))
        return ClientInstanceIds(admin, {name: found for result in results for name, found in result.value.items()})

    def store(
        self,
        name: str,
        *,
        timestamped: bool = False,
        headers: bool = False,
        partition: int | None = None,
        stale: bool = False,
        combine: Combine | None = None,
        isolation: IsolationLevel | None = None,
        timeout: timedelta | int = QUERY_TIMEOUT,
    ) -> StoreT:  # type: ignore[type-var]
        """Return a read-only state store, with its tasks on this host. timeout: time limit for each read.

        timestamped: get ValueAndTimestamp from timestamped stores, as with QueryableStoreTypes.timestamped….
        headers: get ValueTimestampHeaders or AggregationWithHeaders from stores with headers, as with …WithHeaders.
        partition, stale, isolation: see query(); Kafka Streams: StoreQueryParameters. combine: makes one result of the
        list of all tasks' results, for methods of your own stores. Annotate the variable that it is assigned to, for
        example as a ReadOnlyKeyValueStore[str, int]. Rows have ``position``, see query().
        """

        def ask(method: str, arguments: tuple[object, ...], level: IsolationLevel | None) -> TaskResults:
            return self.query(
                name, method, *arguments, partition=partition, stale=stale, isolation=level, timeout=timeout
            )

        return cast("StoreT", QueryableStore(ask, timestamped, headers, combine, isolation))

    def query(
        self,
        store: str,
        method: str,
        *arguments: object,
        partition: int | None = None,
        stale: bool = False,
        isolation: IsolationLevel | None = None,
        timeout: timedelta | int = QUERY_TIMEOUT,
    ) -> TaskResults:
        """Call a reading method of a state store in its tasks on this host; returns the results by task id.

        The dict has ``position``: up to which offset of each input partition records are in the rows (KIP-796), None if
        a task does not know, and ``positions`` by task. isolation: whether records processed since the last commit
        count (KIP-892); by default ``default.interactive.query.isolation.level``. It has no effect on a global store.

        partition: only in the task of this partition. stale: also in standby tasks, and in tasks that are being
        restored, whose rows may be old, or not there yet (KIP-535); then the call fails only if no task has the store.
        A global store is that of a task "global". Raises InvalidStateStoreError if no task has the store or it cannot
        be read now, and TimeoutError after timeout: try again later. Raises UnknownStateStoreError, StateStoreTypeError
        for a method or arguments that do not fit the store, or another StreamsError if another attempt does not help.
        """
        self._check_running(f"query {store}")
        results = self._supervisor.read(
            Query(0, store, method, arguments, partition, stale, isolation), _seconds(timeout)
        )
        failed = [result for result in results if result.error is not None]
        if failed:
            kind = next((one.kind for one in failed if one.kind is not InvalidStateStoreError), InvalidStateStoreError)
            errors = sorted({one.error or "" for one in failed if one.kind is kind})
            raise kind(f"Cannot query {store}: {'; '.join(errors)}")
        by_task = TaskResults()
        for result in results:
            by_task.include(result.value)
        if not by_task:
            which = "it" if partition is None else f"partition {partition} of it"
            raise InvalidStateStoreError(f"Cannot query {store}: no task on this host has {which} now.")
        return by_task

    def state_query(
        self, request: StateQueryRequest[R], *, timeout: timedelta | int = QUERY_TIMEOUT
    ) -> StateQueryResult[R]:
        """Answer a request of interactive queries v2 from the tasks on this host (KIP-796; Java: KafkaStreams.query).

        Each partition has its own QueryResult, a success or a failure; a partition that a task releases at this moment
        is missing, or NOT_PRESENT if the request names it. Raises UnknownStateStoreError, InvalidStateStoreError unless
        the application is RUNNING or REBALANCING, and TimeoutError after timeout.
        """
        self._check_running(f"query {request.store_name}")
        return answered(request, self._supervisor, _seconds(timeout))

    def sql(
        self,
        query: str,
        *,
        isolation: IsolationLevel | None = None,
        at_least: Position | None = None,
        schemas: Mapping[str, Mapping[str, object]] | None = None,
        timeout: timedelta | int | None = None,
    ) -> SqlResult:
        """Return the result of a SELECT over state stores, with those of other hosts; needs penstock-streams[sql].

        Each store is a table; see docs/sql.md for the columns. isolation: see query(). at_least: the position that all
        stores must have reached; with a timeout the query waits for it. schemas: by store, the columns of the values
        with their types, of Arrow or their names, for values whose types no serde declares. timeout: at most
        ``penstock.sql.timeout.ms``, the default.

        Raises UnknownStateStoreError, InvalidStateStoreError if the stores cannot be read now, or have not reached
        at_least, TimeoutError, and StreamsError for a query that cannot be run. Functions of DuckDB that read files or
        the network are refused, and so is all that is not a SELECT.
        """
        self._check_running("run SQL")
        bound = Position() if at_least is None else at_least
        return self._http.sql.result(SqlQuery(query, isolation, bound, schemas or {}, _seconds(timeout)))

    def all_local_store_partition_lags(self, timeout: timedelta | int = QUERY_TIMEOUT) -> dict[str, dict[int, LagInfo]]:
        """Return by store and partition the positions of the active and standby tasks on this host in the changelogs.

        Stores without a changelog, and those of tasks that are starting or moving, are left out. Raises TimeoutError.
        """
        self._check_running("ask for the lags")
        lags: dict[str, dict[int, LagInfo]] = {}
        for result in self._supervisor.read(Query(0, "", LIST_LAGS, stale=True), _seconds(timeout)):
            for task, positions in (result.value or {}).items():
                for store, lag in positions.items():
                    lags.setdefault(store, {})[TaskId.parse(task).partition] = lag
        return lags

    def metadata_for_all_streams_clients(self) -> list[StreamsMetadata]:
        """Return the hosts of the application, this one and others: those with an ``application.server``.

        Raises InvalidStateStoreError unless the application is RUNNING or REBALANCING.
        """
        self._check_running("ask for the hosts")
        return self._supervisor.queries.metadata.all_metadata()

    def streams_metadata_for_store(self, store: str) -> list[StreamsMetadata]:
        """Return the hosts that have a part of a state store, active or standby; none before the first assignment.

        Raises UnknownStateStoreError after it, InvalidStateStoreError unless the application is RUNNING or REBALANCING.
        """
        self._check_running(f"ask for the hosts of {store}")
        return self._supervisor.queries.metadata.metadata_for_store(store)

    def query_metadata_for_key(
        self,
        store: str,
        key: object,
        *,
        key_serde: SerdeLike | str | None = None,
        partitioner: Partitioner | None = None,
    ) -> KeyQueryMetadata | None:
        """Return the host with a key of a state store, None before the first assignment or without any host.

        key_serde: that of the store's input topic; or partitioner: see KStream.to; it gets neither value nor headers,
        and must return one partition.
        Raises UnknownStateStoreError, InvalidStateStoreError unless the application is RUNNING or REBALANCING,
        ValueError if the key belongs to no partition.
        """
        self._check_running(f"ask where {key!r} of {store} is")
        serde = None if key_serde is None else Serdes.of(key_serde)
        return self._supervisor.queries.metadata.key_query_metadata(store, key, serde, partitioner)

    def _check_running(self, what: str) -> None:
        if not self.state.is_running_or_rebalancing:
            raise InvalidStateStoreError(f"Cannot {what}: the application is {self.state.name}.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _state_directory(config: StreamsConfig) -> StateDirectory:
    warn_of_state_left_behind(config)
    try:
        return StateDirectory(
            config["state.dir"], config["application.id"], allow_group_write=config["allow.os.group.write.access"]
        )
    except ProcessorStateError as error:
        raise ConfigError(str(error)) from error


def _seconds(duration: timedelta | int | None) -> float | None:
    if duration is None:
        return None
    return duration.total_seconds() if isinstance(duration, timedelta) else duration / 1000
