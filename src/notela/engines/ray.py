"""A Ray cluster: the same work on many machines (`pip install 'notela[ray]'`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from notela.engines import Outcome, attempt
from notela.errors import NotelaError, check_at_least, check_integer


class Ray:
    """Tasks of a cluster at `address` ("auto": the one this machine belongs to; None: one of this machine alone).

    Each item gets `cpus` cores and `gpus` GPUs (a fraction shares one); one whose worker or node dies is tried again
    `retries` times, elsewhere if need be. notela must be installed on every node.
    """

    def __init__(self, address: str | None = None, cpus: int = 1, gpus: float = 0, retries: int = 3) -> None:
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
        except (ConnectionError, RuntimeError) as error:
            raise NotelaError(
                f"cannot reach a Ray cluster at address={self._address!r} ({str(error).splitlines()[0]}); start one "
                "with `ray start --head`, or leave the address out to use this machine alone"
            ) from error
        there = ray.cluster_resources()
        self.slots = int(there.get("CPU", 0) // self._cpus)
        if self._gpus:
            self.slots = min(self.slots, int(there.get("GPU", 0) / self._gpus))
        if self.slots < 1:
            ray.shutdown()
            raise NotelaError(
                f"no trial fits: each asks for cpus={self._cpus}, gpus={self._gpus}, and the cluster has "
                f"{there.get('CPU', 0):g} CPUs and {there.get('GPU', 0):g} GPUs"
            )
        return self

    def __exit__(self, *exception: object) -> None:
        self._ray.shutdown()

    def map(self, work: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Outcome]:
        """Outcomes of work on items, in the order in which they finish."""
        ray = self._ray
        task = ray.remote(num_cpus=self._cpus, num_gpus=self._gpus, max_retries=self._retries)(attempt)
        waiting, pending = iter(items), {}
        try:
            while True:
                for item in waiting:
                    pending[task.remote(work, item, self._cpus)] = item
                    if len(pending) >= 2 * self.slots:  # a few in the queue, so that no node waits for us
                        break
                if not pending:
                    return
                self.running = min(len(pending), self.slots)
                (done,), _ = ray.wait(list(pending), num_returns=1)
                item = pending.pop(done)
                try:
                    outcome = ray.get(done)
                except ray.exceptions.RayError as error:
                    reason = str(error).splitlines()[0]
                    outcome = Outcome(item, error=f"its worker died {self._retries + 1} times ({reason})")
                yield outcome
        finally:
            for left in pending:
                ray.cancel(left, force=True)
            self.running = 0
