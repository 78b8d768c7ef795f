"""What a training has written, read while it is written: lines, resumed trainings, long logs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.made_trainings import TEACHER, line, numbers

from opd_align.report.dashboard_state import state
from opd_align.report.history import TrainingReader, read_training, training_folder
from opd_align.types import OpdAlignError


def steps(folder: Path) -> list[int]:
    return [evaluation.step for evaluation in read_training(folder).evaluations]


def test_a_resumed_training_replaces_later_lines(folder: Path) -> None:
    lines = [line(step, numbers(0.1)) for step in (0, 100, 200, 300)]
    (folder / "history.jsonl").write_text("".join([*lines, line(200, numbers(0.7))]))
    found = read_training(folder)
    assert [evaluation.step for evaluation in found.evaluations] == [0, 100, 200]
    assert found.evaluations[-1].variants[TEACHER]["alignment/mean"] == 0.7
    rows = [(10, 5.0), (20, 4.0), (30, 3.0), (20, 3.9)]
    (folder / "training.jsonl").write_text("".join(json.dumps({"step": at, "loss": loss}) + "\n" for at, loss in rows))
    assert read_training(folder).log.curve("loss")[:2] == ([10, 20], [5.0, 3.9])


def test_two_log_rows_of_a_step_are_merged(folder: Path) -> None:
    rows = [{"step": 10, "loss": 2.0}, {"step": 10, "train_loss": 2.5}]
    (folder / "training.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    log = read_training(folder).log
    assert {name: log.curve(name)[:2] for name in log.names} == {"loss": ([10], [2.0]), "train_loss": ([10], [2.5])}


def test_an_incomplete_last_line_is_ignored(folder: Path) -> None:
    whole, file = line(100, numbers(0.3)), folder / "history.jsonl"
    for cut in range(len(whole) - 1):
        file.write_text(line(0, numbers(0.2)) + whole[:cut])
        found = read_training(folder)
        assert ([evaluation.step for evaluation in found.evaluations], found.unreadable) == ([0], 0)
    file.write_text(line(0, numbers(0.2)) + whole)
    assert steps(folder) == [0, 100]


def test_unreadable_lines_are_skipped_and_counted(folder: Path) -> None:
    glued = line(100, numbers(0.3))[:40] + line(100, numbers(0.3))
    others = ["[1, 2]\n", '{"no": "step"}\n', '{"step": "7"}\n', '{"step": -1}\n', "\n"]
    (folder / "history.jsonl").write_bytes(
        "".join([line(0, numbers(0.2)), glued, *others, line(200, numbers(0.4))]).encode() + b"\xff\xfe\n"
    )
    found = read_training(folder)
    assert [evaluation.step for evaluation in found.evaluations] == [0, 200]
    assert found.unreadable == 7
    assert state(found)["notes"] == ["Skipped 7 lines that could not be parsed."]


def test_unknown_values_are_none(folder: Path) -> None:
    odd = {
        f"opd_align/{TEACHER}/alignment/mean": float("nan"), f"opd_align/{TEACHER}/advantage/mean": None,
        "opd_align/student/pass_rate": float("inf"), "opd_align/student/nodes": "many",
        "opd_align/evaluation/seconds": True,
    }  # fmt: skip
    (folder / "history.jsonl").write_text(line(0, odd))
    (evaluation,) = read_training(folder).evaluations
    assert evaluation.variants == {TEACHER: {"alignment/mean": None, "advantage/mean": None}}
    assert evaluation.common == {"student/pass_rate": None, "student/nodes": None, "evaluation/seconds": None}


def test_keys_are_split_into_variant_and_stem(folder: Path) -> None:
    keys = (
        "Qwen/Qwen3-8B/reverse_kl/alignment/mean", "kl/jsd_0.5/spearman/kl", "reward/dr_grpo/oracle/kept",
        "student/pass_rate", "alignment/mean", "student/not_registered",
    )  # fmt: skip
    (folder / "history.jsonl").write_text(line(0, {f"opd_align/{key}": 1.0 for key in keys}))
    found = read_training(folder)
    (evaluation,) = found.evaluations
    assert evaluation.variants == {
        "Qwen/Qwen3-8B/reverse_kl": {"alignment/mean": 1.0},
        "kl/jsd_0.5": {"spearman/kl": 1.0},
        "reward/dr_grpo": {"oracle/kept": 1.0},
    }
    assert evaluation.common == {"student/pass_rate": 1.0}
    assert [*found.labels.values()] == ["Qwen/Qwen3-8B · reverse_kl", "kl · jsd_0.5", "reward · dr_grpo"]


@pytest.mark.parametrize(
    ("variants", "labels"),
    [
        (["Self-1C/reverse_kl"], ["Self-1C"]),
        (["Self-1C/reverse_kl", "org/model/reverse_kl"], ["Self-1C", "org/model"]),
        (["reward/dr_grpo"], ["dr_grpo"]),
    ],
)
def test_labels_name_the_objective_only_if_needed(folder: Path, variants: list[str], labels: list[str]) -> None:
    logged = {f"opd_align/{variant}/alignment/mean": 1.0 for variant in variants}
    (folder / "history.jsonl").write_text(line(0, logged))
    assert [*read_training(folder).labels.values()] == labels


def test_only_complete_run_directories_are_listed(training: Path) -> None:
    assert read_training(training).runs == ["step-000000", "step-000100", "step-000200"]
    (training / "step-000100" / "summary.json").unlink()
    (training.parent / "summary.json").write_text("{}")
    with (training / "history.jsonl").open("a") as file:
        file.write(line(300, numbers(0.1)) + line(301, numbers(0.1), run=".."))
    assert read_training(training).runs == ["step-000000", "step-000200"]
    (training / "step-000200").rename(training / "step-000200-2")
    with (training / "history.jsonl").open("a") as file:
        file.write(line(200, numbers(0.1), run="step-000200-2"))
    assert read_training(training).runs == ["step-000000", "step-000200-2"]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nowhere", "is not a directory"),
        ("empty", "has no folder 'opd_align': no training with AlignmentCallback wrote there"),
        ("gkd/opd_align", "pass '.*gkd'"),
    ],
)
def test_a_folder_without_a_training_raises(training: Path, tmp_path: Path, place: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(OpdAlignError, match=message):
        training_folder(tmp_path / place)


def test_a_reader_reads_only_what_was_appended(folder: Path) -> None:
    """And gives the same as reading everything again, whatever the pieces in which lines arrive."""
    reader, history, log = TrainingReader(folder), folder / "history.jsonl", folder / "training.jsonl"
    assert reader.read().evaluations == ()
    written = "".join([line(0, numbers(0.2)), line(100, numbers(0.3)), "broken\n", line(50, numbers(0.4))])
    rows = "".join(json.dumps({"step": at, "loss": 1 / at, "at": float(at)}) + "\n" for at in (1, 2, 3, 2, 5))
    for size in (7, 101, len(written) // 2):
        history.write_text("")
        log.write_text("")
        for at in range(0, max(len(written), len(rows)), size):
            for file, text in ((history, written), (log, rows)):
                with file.open("a") as opened:
                    opened.write(text[at : at + size])
            found, again = reader.read(), read_training(folder)
            assert found.evaluations == again.evaluations
            assert found.unreadable == again.unreadable
            assert {n: found.log.curve(n) for n in found.log.names} == {n: again.log.curve(n) for n in again.log.names}
        assert [evaluation.step for evaluation in found.evaluations] == [0, 50]
        assert found.log.curve("loss")[:2] == ([1, 2, 5], [1, 0.5, 0.2])
        assert found.log.seconds_per_step == 1.0


def test_a_line_without_its_end_is_not_read_twice(folder: Path) -> None:
    reader, history = TrainingReader(folder), folder / "history.jsonl"
    history.write_text(line(0, numbers(0.2)) + line(100, numbers(0.3)).rstrip())
    assert [one.step for one in reader.read().evaluations] == [0, 100]
    with history.open("a") as file:
        file.write("\n" + line(200, numbers(0.4)))
    found = reader.read()
    assert ([one.step for one in found.evaluations], found.unreadable) == ([0, 100, 200], 0)
    history.write_text(line(7, numbers(0.4)) + line(8, numbers(0.4)) * 20)  # another training, with a longer file
    assert [one.step for one in reader.read().evaluations] == [7, 8]


def test_a_long_log_is_binned_and_keeps_its_spikes(folder: Path) -> None:
    rows = [{"step": at, "loss": 1.0 + (at % 7) / 100 + 9 * (at == 7_777)} for at in range(1, 20_001)]
    (folder / "training.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    training = read_training(folder)
    curve = training.log.curve("loss", bins=500)
    assert [len(part or []) for part in curve] == [500] * 4
    assert (curve.steps[0], curve.steps[-1]) == (1, 20_000)
    assert curve.steps == sorted(curve.steps)
    # Bins of 40 rows: the mean of each, and a spike of one row.
    for number in (0, 194, 499):
        values = [row["loss"] for row in rows[40 * number : 40 * number + 40]]
        assert curve.values[number] == pytest.approx(sum(values) / 40, rel=1e-5)
        assert (curve.low[number], curve.high[number]) == pytest.approx((min(values), max(values)), rel=1e-5)  # type: ignore[index]
    assert max(curve.high or []) == pytest.approx(rows[7_776]["loss"])
    # Zoomed in, every row is there, with one to either side.
    part = training.log.curve("loss", low=7_700, high=7_800, bins=500)
    assert part.steps == list(range(7_699, 7_802))
    assert part.low is None
