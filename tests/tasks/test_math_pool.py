"""The processes that compare expressions: same results everywhere, a limit everywhere, nothing left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import opd_align
from opd_align.tasks import Maths, Verdict, math_pool, math_worker
from opd_align.tasks.math_pool import MathPool
from opd_align.types import OpdAlignError

ENDLESS = r"\tan(\tan(\tan(\tan(\tan(\tan(\tan(\tan(1))))))))"


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@pytest.fixture
def pool():
    pool = MathPool(max_workers=2)
    yield pool
    pool.close()


def test_expressions_are_compared_by_value(pool):
    assert pool.compare(r"\sqrt{12}", r"2\sqrt{3}") == "same"
    assert pool.compare(r"\sqrt{12}", r"3\sqrt{3}") == "different"
    assert pool.compare(r"\sqrt{12}", "") == "readable"


def test_no_worker_is_started_before_it_is_needed_and_one_serves_many_comparisons(pool):
    assert pool._idle == []
    for number in range(5):
        pool.compare(r"\sqrt{2}", rf"\sqrt{{{number}}}")
    assert len(pool._idle) == 1


def test_a_comparison_that_was_made_before_needs_no_worker(pool):
    first = pool.compare(r"\sqrt{2}", r"\sqrt{3}")
    pool.close()
    assert pool.compare(r"\sqrt{2}", r"\sqrt{3}") == first
    assert pool._idle == []


@pytest.mark.parametrize("in_thread", [False, True], ids=["main thread", "another thread"])
def test_an_endless_comparison_ends_as_unknown_in_every_thread(in_thread):
    verdicts = []

    def judge() -> None:
        verdicts.append(Maths().judge(rf"\boxed{{{ENDLESS}}}", r"\sqrt{2}"))

    if in_thread:
        thread = threading.Thread(target=judge, daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
    else:
        judge()
    assert verdicts == [Verdict.UNKNOWN]


def test_a_worker_that_ignores_its_own_limit_is_killed_and_replaced():
    pool = MathPool(cpu_limit_s=1000.0, wall_limit_s=0.5)
    pool.compare("x", "y")
    worker = pool._idle[0]._process
    assert pool.compare(r"\sqrt{2}", ENDLESS) == "timeout"
    assert worker.poll() is not None
    assert pool._idle == []
    pool.wall_limit_s = 60.0
    assert pool.compare("2x", "x+x") == "same"
    pool.close()


def test_a_worker_that_died_is_replaced(pool):
    pool.compare("x", "y")
    worker = pool._idle[0]._process
    worker.kill()
    worker.wait()
    assert pool.compare("2x", "x+x") == "same"


def test_threads_share_the_pool_and_get_their_own_replies(pool):
    rows = [(rf"\sqrt{{{4 * n}}}", rf"{2 if n % 2 else 3}\sqrt{{{n}}}", n % 2) for n in (2, 3, 5, 6, 7, 10, 11, 13)]
    with ThreadPoolExecutor(6) as threads:
        replies = list(threads.map(lambda row: pool.compare(row[0], row[1]), rows))
    assert replies == ["same" if same else "different" for *_, same in rows]
    assert len(pool._idle) <= 2


def _compare_in_child(pool: MathPool, replies: multiprocessing.Queue) -> None:
    replies.put((pool.compare(r"\sqrt{12}", r"2\sqrt{3}"), os.getpid()))


def test_a_forked_child_uses_workers_of_its_own():
    math_pool.POOL.compare("x", "y")
    before = [worker._process.pid for worker in math_pool.POOL._idle]
    context = multiprocessing.get_context("fork")
    replies = context.Queue()
    child = context.Process(target=_compare_in_child, args=(math_pool.POOL, replies))
    child.start()
    assert replies.get(timeout=120)[0] == "same"
    child.join(60)
    assert [worker._process.pid for worker in math_pool.POOL._idle] == before
    assert math_pool.POOL.compare("2y", "y+y") == "same"


SCRIPT = textwrap.dedent(
    r"""
    import threading, time
    from opd_align.tasks.math_pool import MathPool
    print("imported", flush=True)
    pool = MathPool(cpu_limit_s={limit}, wall_limit_s=1000.0)
    pool.compare("x", "y")
    print(pool._idle[0]._process.pid, flush=True)
    if {busy}:
        threading.Thread(target=pool.compare, args=("x", {expression!r}), daemon=True).start()
    time.sleep({sleep})
    """
)


def run_script(**values: object) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(opd_align.__file__).parents[1])}
    code = SCRIPT.format(expression=ENDLESS, **values)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)


def wait_until_gone(pid: int, seconds: float) -> bool:
    waiting = threading.Event()
    for _ in range(int(seconds * 10)):
        if not alive(pid):
            return True
        waiting.wait(0.1)
    return not alive(pid)


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_no_worker_outlives_a_killed_process(busy):
    """An idle one ends with its input; a busy one when its CPU time is used up."""
    with run_script(limit=1.0, busy=busy, sleep=600) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(2)]
        assert lines[0] == "imported"  # once: a worker does not import the script
        process.send_signal(signal.SIGKILL)
    assert wait_until_gone(int(lines[1]), 60)


def test_no_worker_outlives_the_interpreter():
    process = run_script(limit=1.0, busy=False, sleep=0)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert wait_until_gone(int(output.split()[1]), 30)


def test_an_error_in_math_verify_is_not_the_models_error(monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("sympy gave up")

    monkeypatch.setattr("math_verify.verify", fail)
    assert math_worker.compare(r"\sqrt{2}", r"\sqrt{3}") == "error"
    monkeypatch.setattr(math_pool.POOL, "compare", math_worker.compare)
    monkeypatch.setattr("opd_align.tasks.math_compare.is_readable", lambda gold: True)
    assert Maths().judge(r"\boxed{\sqrt{3}}", r"\sqrt{2}") is Verdict.UNKNOWN


def test_without_math_verify_integers_work_and_expressions_name_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "math_verify", None)
    assert Maths().judge("\\boxed{73}", "073") is Verdict.CORRECT
    with pytest.raises(OpdAlignError, match=r"opd-align\[tasks\]"):
        Maths().judge("\\boxed{\\sqrt{31}}", "\\sqrt{37}")


def test_a_worker_that_cannot_start_is_reported_in_one_line(monkeypatch, tmp_path):
    broken = tmp_path / "worker.py"
    broken.write_text("raise SystemExit(1)", encoding="utf-8")
    monkeypatch.setattr(math_pool, "_WORKER", broken)
    with pytest.raises(OpdAlignError, match="did not start"):
        MathPool().compare("x", "y")
