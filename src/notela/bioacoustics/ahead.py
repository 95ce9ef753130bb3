"""Reading goes on while the network computes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

from notela.bioacoustics.audio import quiet_decoder

AHEAD = 4  # items that are made before they are needed

T = TypeVar("T")


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items, made by a thread while their reader computes; what its decoders say on stderr goes nowhere."""
    ready: queue.Queue[tuple[T] | BaseException | None] = queue.Queue(AHEAD)
    stop = threading.Event()

    def put(item: tuple[T] | BaseException | None) -> bool:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.2)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for item in items:
                if not put((item,)):
                    return
            put(None)
        except BaseException as error:
            put(error)

    thread = threading.Thread(target=work, daemon=True)
    with quiet_decoder():
        thread.start()
        try:
            while (item := ready.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item[0]
        finally:
            stop.set()
            thread.join()
