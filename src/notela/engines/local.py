"""Processes of this machine, each with its share of threads."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from multiprocessing import connection, resource_tracker
from typing import Any

from notela.engines import Outcome, attempt, cores, failure
from notela.errors import check_integer

_SPAWN = multiprocessing.get_context("spawn")  # a forked copy of a process with threads may hang
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Local:
    """`workers` processes (by default one for every `cpus` cores); an item whose worker dies is tried again
    `retries` times."""

    def __init__(self, workers: int | None = None, cpus: int = 1, retries: int = 2) -> None:
        check_integer("cpus", cpus, 1)
        self.slots = max(1, cores() // cpus) if workers is None else workers
        check_integer("workers", self.slots, 1)
        self.running = 0
        self._cpus, self._retries = cpus, retries
        self._workers: list[_Worker] = []

    def __enter__(self) -> Local:
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in self._workers:
            worker.stop()
        self._workers.clear()

    def map(self, work: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Outcome]:
        """Outcomes of work on items, in the order in which they finish."""
        fresh = ((item, 1) for item in items)  # taken as workers become free: there may be a million
        again: list[tuple[Any, int]] = []
        busy: dict[connection.Connection, tuple[_Worker, Any, int]] = {}
        idle = list(self._workers)
        try:
            while True:
                while len(busy) < self.slots and (turn := again.pop() if again else next(fresh, None)) is not None:
                    if not idle:
                        idle.append(_Worker(self._cpus, self._workers))
                    worker, (item, tries) = idle.pop(), turn
                    busy[worker.pipe] = worker, item, tries
                    with contextlib.suppress(OSError):  # dead already: wait() finds out
                        worker.pipe.send((work, item))
                if not busy:
                    return
                self.running = len(busy)
                for pipe in connection.wait(list(busy)):
                    worker, item, tries = busy.pop(pipe)  # type: ignore[call-overload]
                    try:
                        outcome = replace(worker.pipe.recv(), item=item)
                        idle.append(worker)
                    except (EOFError, OSError):
                        outcome = self._bury(worker, item, tries)
                        if outcome is None:
                            again.append((item, tries + 1))
                            continue
                    yield outcome
        finally:
            for worker, _, _ in busy.values():  # left in the middle: nobody will ask for these
                worker.stop()
                self._workers.remove(worker)
            self.running = 0

    def _bury(self, worker: _Worker, item: Any, tries: int) -> Outcome | None:
        worker.stop()
        self._workers.remove(worker)
        if tries <= self._retries:
            return None
        code = worker.process.exitcode
        return Outcome(item, error=f"its worker process died {tries} times (exit code {code}); out of memory, perhaps")


class _Worker:
    def __init__(self, cpus: int, colleagues: list[_Worker]) -> None:
        self.pipe, theirs = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=_serve, args=(theirs, cpus))
        with _environment(dict.fromkeys(_THREADS, str(cpus))), _deaf_to_ctrl_c():
            self.process.start()
            colleagues.append(self)
        theirs.close()

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(pipe: connection.Connection, cpus: int) -> None:
    """A worker's life: items in, outcomes out, until the pipe closes or the parent dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            work, item = pipe.recv()
            outcome = attempt(work, item, cpus)
        except EOFError:
            return
        except Exception as problem:  # the work cannot be imported here
            outcome = failure(problem)
        try:
            pipe.send(outcome)
        except Exception as problem:  # what it made cannot be pickled
            pipe.send(failure(problem))


def _end_with_parent() -> None:
    """A killed parent cannot stop its workers; they must not go on beside those of the next command."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextlib.contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Ctrl-C reaches the whole group; a child that is born deaf to it leaves the decision to its parent, who hears it
    when this ends."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # starting that would end the deafness
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Variables that a child process shall inherit."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
