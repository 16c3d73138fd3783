"""Scan processes that are kept beside the driver, for masters that run Spark within one machine.

A job of Spark takes a tenth of a second until its tasks run, and half of that until their answers are there: longer
than the tasks themselves take for a million records. On one machine there is nothing to distribute, so the shares of a
pass are handed to processes that wait for them. They are started for the first pass that needs them, and end after
`IDLE_S` without work, or with this process. Bound: as many as Spark would run tasks at once; shares wait in order.

A process that is lost takes all of them with it: whoever waits for a share is told, and the next pass starts new ones.
So does one that does not end within `PATIENCE_S` when its pass is not wanted any more, as if it were stopped.
"""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, TypeVar

from catchment.errors import EngineError

IDLE_S = 60.0  # as Spark keeps its own Python workers
PATIENCE_S = 10.0  # for a share that is not wanted any more; a process looks at that between blocks of records
LOOK_EVERY_S = 0.2  # how often it is asked whether a share is still wanted
REAP_S = 5.0  # for processes that were killed; only one that waits for a disk takes longer than an instant
Argument = TypeVar("Argument")
Answer = TypeVar("Answer")


class ScanProcessLostError(EngineError):
    """A scan process has ended, or could not be started."""


class CannotBePickledError(EngineError):
    """What a process would be asked for cannot be handed to it."""


class ScanPool:
    """Some scan processes, started when they are needed."""

    def __init__(self, processes: int, idle_s: float = IDLE_S, patience_s: float = PATIENCE_S) -> None:
        self._processes = processes
        self._idle_s = idle_s
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._running: _Processes | None = None
        self._calls = 0  # that are under way
        self._timer: threading.Timer | None = None

    @property
    def is_running(self) -> bool:
        """Whether there are processes."""
        return self._running is not None

    def map(
        self,
        call: Callable[[Argument], Answer],
        arguments: Sequence[Argument],
        on_queued: Callable[[], None] = lambda: None,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> list[Answer]:
        """Return what a function returns for each argument; function and arguments are pickled.

        `on_queued` is called when all wait for their turn. An exception within a process is raised here as a
        RuntimeError that tells it. Once the answers are not wanted any more, a process that does not end by itself is
        ended.
        """
        packed = [_pack(call, argument) for argument in arguments]
        processes = self._begin()
        try:
            waiting = processes.queue(packed)
            on_queued()
            return [self._wait(future, is_wanted) for future in waiting]
        except CancelledError as cancelled:  # another pass has lost a process
            self._forget(processes)
            raise ScanProcessLostError("the scan processes have ended") from cancelled
        except ScanProcessLostError:
            self._forget(processes)
            raise
        finally:
            self._end()

    def _wait(self, future: Future[Answer], is_wanted: Callable[[], bool]) -> Answer:
        ends_at = None
        while True:
            try:
                return future.result(LOOK_EVERY_S)
            except TimeoutError:
                if is_wanted() or not future.running():
                    continue
            now = time.monotonic()
            ends_at = now + self._patience_s if ends_at is None else ends_at
            if now >= ends_at:
                raise ScanProcessLostError("a scan process does not end, and is ended")

    def close(self) -> None:
        """End the processes; what is under way fails."""
        with self._lock:
            processes = self._running
            self._running = None
        if processes is not None:
            processes.close()

    def _begin(self) -> _Processes:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._running is None:
                self._running = _Processes(self._processes)
            self._calls += 1
            return self._running

    def _end(self) -> None:
        with self._lock:
            self._calls -= 1
            if self._calls == 0 and self._running is not None:
                self._timer = threading.Timer(self._idle_s, self._close_idle)
                self._timer.daemon = True
                self._timer.start()

    def _close_idle(self) -> None:
        with self._lock:
            if self._calls:
                return
            processes = self._running
            self._running = None
        if processes is not None:
            processes.close()

    def _forget(self, lost: _Processes) -> None:
        with self._lock:
            if self._running is lost:
                self._running = None
        lost.close()


class _Processes:
    """The processes that were started together, and a thread for each that waits for its answers."""

    def __init__(self, count: int) -> None:
        pairs = [socket.socketpair() for _ in range(count)]
        theirs = [other.fileno() for _, other in pairs]
        command = [sys.executable, "-P", "-m", "catchment.vectorised.scan_worker", *map(str, theirs)]
        modules = os.pathsep.join(folder or os.getcwd() for folder in sys.path)  # they import what this process would
        try:
            # a session of their own: they can be ended together, and Ctrl-C at a terminal does not reach them
            self._parent = subprocess.Popen(
                command,
                pass_fds=theirs,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": modules},
            )
        except OSError as error:
            for mine, _ in pairs:
                mine.close()
            raise ScanProcessLostError(f"scan processes cannot be started: {error}") from error
        finally:
            for _, other in pairs:
                other.close()
        self._idle: SimpleQueue[Connection] = SimpleQueue()
        for mine, _ in pairs:
            self._idle.put(Connection(mine.detach()))
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="scan")
        self._closing = threading.Lock()
        self._is_closed = False

    def queue(self, calls: Sequence[bytes]) -> list[Future[Any]]:
        """Let calls wait for their turn."""
        try:
            return [self._threads.submit(self._call, call) for call in calls]
        except RuntimeError as error:  # another pass has lost a process
            raise ScanProcessLostError("the scan processes have ended") from error

    def _call(self, packed: bytes) -> Any:
        connection = self._idle.get()
        try:
            connection.send_bytes(packed)
            is_done, answer = connection.recv()
        except (EOFError, OSError) as error:
            raise ScanProcessLostError("a scan process has ended in the middle of its work") from error
        finally:
            self._idle.put(connection)
        if not is_done:
            raise RuntimeError(f"a scan process has failed:\n{answer}")
        return answer

    def close(self) -> None:
        """End the processes, whatever they do: what they write counts only once the driver has heard of it."""
        with self._closing:
            if self._is_closed:
                return  # their numbers may be those of others by now
            self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        with suppress(ProcessLookupError):
            os.killpg(self._parent.pid, signal.SIGKILL)
        self._parent.wait()
        self._reap_others()

    def _reap_others(self) -> None:
        """Wait for those that were forked: they are children of this process where it is the first of a container."""
        deadline = time.monotonic() + REAP_S
        with suppress(ChildProcessError):
            while time.monotonic() < deadline:
                if os.waitpid(-self._parent.pid, os.WNOHANG)[0] == 0:
                    time.sleep(0.01)


def _pack(call: Callable[[Argument], Answer], argument: Argument) -> bytes:
    try:
        return pickle.dumps((call, argument))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise CannotBePickledError(f"a pass over files cannot be handed to a scan process: {error}") from error


_shared: dict[int, ScanPool] = {}
_sharing = threading.Lock()


def shared_pool(processes: int) -> ScanPool:
    """Return the pool of so many processes that the sites of this process share."""
    with _sharing:
        if processes not in _shared:
            _shared[processes] = ScanPool(processes)
            atexit.register(_shared[processes].close)
        return _shared[processes]
