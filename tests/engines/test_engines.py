"""The local engine: outcomes, errors, deaths, threads. (Ray's is tested with the bench, on a cluster of two nodes.)"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from notela.engines import cores
from notela.engines.local import Local
from notela.errors import NotelaError


def square(x: int) -> int:
    return x * x


def threads(_: object) -> tuple[int, str | None, int]:
    import torch

    return torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS"), os.getpid()


def fussy(x: int) -> int:
    if x == 1:
        raise NotelaError("x=1 is one; choose another")
    return 10 // x


def dies_once(marker: str) -> str:
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


def dies(_: object) -> None:
    os._exit(3)


def unpicklable(_: object) -> object:
    return lambda: None


def sleeps(folder: str) -> None:
    Path(folder, f"{os.getpid()}.pid").touch()
    time.sleep(600)


def test_every_item_has_one_outcome() -> None:
    with Local(2) as engine:
        assert {o.item: o.value for o in engine.map(square, range(20))} == {x: x * x for x in range(20)}
        assert [o.value for o in engine.map(square, [])] == []
        assert sorted(o.value for o in engine.map(square, [3, 4])) == [9, 16]  # the same workers, again
        assert engine.running == 0


def test_errors_are_outcomes_and_the_rest_goes_on() -> None:
    with Local(1) as engine:
        found = {o.item: o for o in engine.map(fussy, [0, 1, 2])}
    assert found[1].error == "x=1 is one; choose another"
    assert found[1].trace is None
    assert found[0].error == "ZeroDivisionError: integer division or modulo by zero"
    assert "in fussy" in str(found[0].trace)
    assert found[2].value == 5


def test_what_cannot_come_back_is_an_error() -> None:
    with Local(1) as engine:
        (outcome,) = engine.map(unpicklable, ["it"])
    assert outcome.item == "it"
    assert "pickle" in str(outcome.error)


def test_work_that_a_worker_cannot_import_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_here.py").write_text("def work(x): return x")
    with Local(1) as engine:
        assert [o.value for o in engine.map(square, [1])] == [1]  # the worker is there before the path is
        monkeypatch.syspath_prepend(str(tmp_path))
        import only_here

        (outcome,) = engine.map(only_here.work, [1])
    assert "No module named 'only_here'" in str(outcome.error)


def test_threads_are_a_run_s_own_and_a_worker_s_environment_says_so() -> None:
    before = dict(os.environ)
    with Local(2, cpus=2) as engine:
        seen = [o.value for o in engine.map(threads, range(4))]
    assert {(torch_threads, environment) for torch_threads, environment, _ in seen} == {(2, "2")}
    assert dict(os.environ) == before
    assert os.getpid() not in {pid for *_, pid in seen}


def test_ctrl_c_while_a_worker_is_being_started_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    start = multiprocessing.context.SpawnProcess.start

    def interrupted(process: multiprocessing.context.SpawnProcess) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        start(process)

    monkeypatch.setattr(multiprocessing.context.SpawnProcess, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), Local(1) as engine:
        list(engine.map(square, [1, 2]))
    assert not multiprocessing.active_children()


def test_by_default_there_is_a_worker_for_every_core() -> None:
    assert Local().slots == cores()
    assert Local(cpus=10**6).slots == 1
    with pytest.raises(NotelaError, match="workers=0"):
        Local(0)


def test_an_item_whose_worker_dies_is_tried_again(tmp_path: Path) -> None:
    with Local(2) as engine:
        assert [o.value for o in engine.map(dies_once, [str(tmp_path / "marker")])] == ["survived"]


def test_an_item_that_always_kills_its_worker_fails_and_the_rest_goes_on() -> None:
    with Local(1, retries=1) as engine:
        (outcome,) = engine.map(dies, ["deadly"])
        assert "died 2 times (exit code 3)" in str(outcome.error)
        assert [o.value for o in engine.map(square, [5])] == [25]


def test_leaving_the_loop_stops_the_workers(tmp_path: Path) -> None:
    with Local(2) as engine:
        outcomes = engine.map(_one_quick, [("quick", ""), ("slow", str(tmp_path))])
        assert next(outcomes).value == "quick"
        outcomes.close()
        assert len(multiprocessing.active_children()) == 1  # the idle one
        assert [o.value for o in engine.map(square, [2])] == [4]
    assert not multiprocessing.active_children()


def _one_quick(item: tuple[str, str]) -> str:
    kind, folder = item
    if kind == "slow":
        sleeps(folder)
    return kind


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at processes in /proc")
def test_workers_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    code = (
        "from notela.engines.local import Local\n"
        "from test_engines import sleeps\n"
        "if __name__ == '__main__':\n"
        f"    with Local(2) as engine: list(engine.map(sleeps, [{str(tmp_path)!r}] * 2))\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    parent = subprocess.Popen([sys.executable, str(script)], env=env)
    pids = _wait_for(lambda: [int(p.stem) for p in tmp_path.glob("*.pid")], 2)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 30
    while any(_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "a worker goes on without its parent"
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    """Running, and no zombie that waits for somebody to collect it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _wait_for(find, count: int) -> list[int]:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + 60
    while len(found := find()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def test_items_are_taken_as_workers_become_free() -> None:
    taken = []

    def stream() -> Iterator[int]:
        for x in range(1000):
            taken.append(x)
            yield x

    with Local(1) as engine:
        outcomes = engine.map(square, stream())
        next(outcomes)
        assert len(taken) < 5
        outcomes.close()
