"""A Ray cluster: the same work on many machines (`pip install 'notela[ray]'`)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from notela.engines import Outcome, attempt
from notela.errors import NotelaError, check_at_least, check_integer

RECOUNT = 10.0
"""Seconds after which nodes that came or went are noticed."""


class Ray:
    """Tasks of a cluster at `address` ("auto": the one this machine belongs to; "local": one of this machine alone).

    Each item gets `cpus` cores and `gpus` GPUs (a fraction shares one); one whose worker or node dies is tried again
    `retries` times, elsewhere if need be. notela must be installed on every node.
    """

    def __init__(self, address: str = "local", cpus: int = 1, gpus: float = 0, retries: int = 3) -> None:
        check_integer("cpus", cpus, 1)
        check_at_least("gpus", gpus, 0)
        self.running, self.slots = 0, 0
        self._address, self._cpus, self._gpus, self._retries = address, cpus, gpus, retries

    def __enter__(self) -> Ray:
        try:
            import ray
        except ImportError as error:
            raise NotelaError("engine='ray' needs Ray: pip install 'notela[ray]'") from error
        self._ray = ray
        try:
            ray.init(address=self._address, log_to_driver=False, configure_logging=False, include_dashboard=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise NotelaError(
                f"cannot reach a Ray cluster at address={self._address!r} ({str(error).splitlines()[0]}); start one "
                "with `ray start --head`, or leave the address out to use this machine alone"
            ) from error
        self.slots = self._count_slots()
        if self.slots < 1:
            has = "; ".join(
                f"{n['Resources'].get('CPU', 0):g}, {n['Resources'].get('GPU', 0):g}" for n in self._nodes()
            )
            ray.shutdown()
            raise NotelaError(
                f"no node has room for one piece of work, which asks for cpus={self._cpus}, gpus={self._gpus:g} (CPUs, "
                f"GPUs of each node: {has}); ask for less"
            )
        return self

    def _nodes(self) -> list[Any]:
        return [node for node in self._ray.nodes() if node["Alive"]]

    def _count_slots(self) -> int:
        """What fits on each node, summed; nodes come and go."""
        room = 0
        for node in self._nodes():
            cpus, gpus = (node["Resources"].get(kind, 0) for kind in ("CPU", "GPU"))
            room += min(int(cpus // self._cpus), int(gpus / self._gpus + 1e-9) if self._gpus else 10**9)
        return room

    def __exit__(self, *exception: object) -> None:
        self._ray.shutdown()

    def map(self, work: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Outcome]:
        """Outcomes of work on items, in the order in which they finish."""
        ray = self._ray
        task = ray.remote(num_cpus=self._cpus, num_gpus=self._gpus, max_retries=self._retries)(attempt)
        waiting, counted = iter(items), time.monotonic()
        pending: dict[Any, Any] = {}
        try:
            while True:
                room = 2 * max(1, self.slots) - len(pending)  # a few in the queue, so that no node waits for us
                for item in itertools.islice(waiting, max(0, room)):
                    pending[task.remote(work, item, self._cpus)] = item
                if not pending:
                    return
                self.running = min(len(pending), self.slots)
                ready, _ = ray.wait(list(pending), num_returns=1, timeout=RECOUNT)
                if time.monotonic() - counted > RECOUNT:
                    self.slots, counted = self._count_slots(), time.monotonic()
                if not ready:
                    continue
                done = ready[0]
                item = pending.pop(done)
                try:
                    outcome = replace(ray.get(done), item=item)
                except ray.exceptions.RayError as error:
                    reason = " ".join(str(error).split())
                    outcome = Outcome(item, error=f"given up after {self._retries} retries: {reason}")
                yield outcome
        finally:
            for left in pending:
                ray.cancel(left, force=True)
            self.running = 0
