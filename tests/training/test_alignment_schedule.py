"""The schedule without a training: levels, strengths, and snapshots that are kept, dropped and restored."""

from __future__ import annotations

import logging
import resource
from math import nan
from types import SimpleNamespace

import pytest
import torch
from support.scripted_schedule import Scripted, ScriptedSchedule

from opd_align.core.alarm import alarms
from opd_align.core.random_walk import Reading
from opd_align.training import weight_snapshots
from opd_align.training.alignment_schedule import (
    AlignmentSchedule,
    best_step,
    gains,
    judge,
    schedule_strength,
    strength_of,
)
from opd_align.training.trl_compat import discard_generated
from opd_align.training.weight_snapshots import WeightSnapshots
from opd_align.types import OpdAlignError


def readings(*means, error=0.05, every=20):
    return [Reading(every * n, mean, error) for n, mean in enumerate(means)]


def strengths(*means, error=0.05):
    return [strength_of([state]) for state in alarms(readings(*means, error=error))]


def test_full_strength_while_it_helps_and_none_while_it_harms():
    assert strength_of([]).value == 1
    assert [each.value for each in strengths(nan, 0.3, 0.3)] == [1, 1, 1]
    found = strengths(0.3, 0.3, -0.4, -0.4)
    assert (found[1].level, found[-1].level, found[-1].value) == ("helps", "harms", 0)


def test_it_gives_way_while_it_fades():
    found = strengths(0.4, 0.4, 0.4, *[-0.2] * 9, error=0.2)
    fading = [each for each in found if each.level == "fades"]
    assert len(fading) > 1
    assert all(0.2 <= each.value < 1 and each.value == 2 * each.p_helps for each in fading)
    assert [each.value for each in fading] == sorted((each.value for each in fading), reverse=True)


def test_noise_does_not_switch_it():
    values = [each.value for each in strengths(*[0.3, 0.3] + [0.15, -0.05] * 8, error=0.3)]
    assert set(values) == {1.0}


def test_one_teacher_that_helps_is_enough():
    good, bad = alarms(readings(0.4, 0.4))[-1], alarms(readings(-0.4, -0.4))[-1]
    assert strength_of([bad, good]).value == 1
    assert strength_of([bad, bad]).value == 0


def test_the_best_step_is_where_alignment_turned():
    found = readings(0.3, 0.3, 0.3, -0.3, -0.3, -0.3)
    steps = [0, 20, 40, 60, 80, 100]
    assert best_step([found], steps) == 40
    assert best_step([found], [0, 20, 100]) == 20, "of those that are kept"
    assert best_step([readings(-0.3, -0.3)], [0, 20]) == 0
    assert best_step([readings(0.3, 0.3)], [0, 20]) == 20
    assert best_step([[]], [0, 20]) is None
    assert gains([readings(nan, nan)], [0, 20]) == {}


def small_trainer(seed=0):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
    model[0].bias.requires_grad_(False)
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=0.1)
    return SimpleNamespace(model=model, optimizer=optimizer, accelerator=SimpleNamespace(process_index=0))


def train(trainer, steps):
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        trainer.model(torch.randn(5, 3, generator=generator)).pow(2).mean().backward()
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()


def weights(trainer):
    return [each.detach().clone() for each in trainer.model.parameters()]


@pytest.mark.parametrize("place", ["disk", "memory"])
@pytest.mark.parametrize("at", [0, 3])
def test_training_after_a_rollback_is_training_from_that_step(place, at, tmp_path):
    trainer, twin = small_trainer(), small_trainer()
    snapshots = WeightSnapshots(trainer, tmp_path, place=place)
    train(trainer, range(at))
    snapshots.take(at)
    train(trainer, range(at, 9))
    snapshots.restore(at)
    train(trainer, range(at, 6))
    train(twin, range(6))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(weights(trainer), weights(twin), strict=True))


def test_the_worst_snapshots_make_room_and_the_latest_one_stays(tmp_path):
    trainer = small_trainer()
    snapshots = WeightSnapshots(trainer, tmp_path, limit=3)
    for step in (0, 20, 40, 60):
        snapshots.take(step)
        snapshots.keep({0: 0.0, 20: 5.0, 40: 8.0, 60: -1.0})
    assert snapshots.steps == (20, 40, 60)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000020", "step-000040", "step-000060"]


def test_snapshots_on_disk_are_found_by_a_resumed_training(tmp_path):
    snapshots = WeightSnapshots(small_trainer(), tmp_path)
    for step in (0, 20, 40):
        snapshots.take(step)
    resumed = WeightSnapshots(small_trainer(seed=1), tmp_path)
    resumed.begin(20)
    assert resumed.steps == (0, 20), "what came after the checkpoint is repeated"
    assert resumed.common_steps() == [0, 20]
    again = WeightSnapshots(small_trainer(), tmp_path)
    again.begin(0)
    assert again.steps == (), "a new training"
    assert not list(tmp_path.glob("step-*/*.pt"))


def test_mistakes_are_refused(tmp_path):
    with pytest.raises(OpdAlignError, match="snapshots must be 'disk' or 'memory'"):
        WeightSnapshots(small_trainer(), tmp_path, place="gpu")
    with pytest.raises(OpdAlignError, match="max_snapshots must be at least 2"):
        WeightSnapshots(small_trainer(), tmp_path, limit=1)
    with pytest.raises(OpdAlignError, match="on_harm must be 'rollback', 'stop' or 'zero'"):
        AlignmentSchedule(None, on_harm="explode")
    with pytest.raises(OpdAlignError, match="when must be 'fades' or 'harms'"):
        AlignmentSchedule(None, when="never")
    with pytest.raises(OpdAlignError, match="follow must be 'alignment' or 'pass_rate', not 'loss'"):
        AlignmentSchedule(None, follow="loss")
    with pytest.raises(OpdAlignError, match="on_harm='zero' needs follow='alignment'"):
        AlignmentSchedule(None, follow="pass_rate", on_harm="zero")
    with pytest.raises(OpdAlignError, match="when='harms' needs follow='alignment'"):
        AlignmentSchedule(None, follow="pass_rate", when="harms")
    with pytest.raises(OpdAlignError, match="follows an AlignmentCallback, not a NoneType"):
        AlignmentSchedule(None)


def test_without_a_schedule_the_strength_is_one():
    assert schedule_strength(SimpleNamespace(callback_handler=SimpleNamespace(callbacks=[]))) == 1


# -- what a full disk, a failed evaluation, another training and one reading must not do


class FullDisk:
    """Within the block, no file may grow above a few bytes."""

    def __enter__(self):
        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, self.before[1]))

    def __exit__(self, *_):
        resource.setrlimit(resource.RLIMIT_FSIZE, self.before)


def scripted(tmp_path, script, *, teachers=("teacher",), pass_rates=None, **options):
    """A schedule in a trainer that is only what a schedule needs of it."""
    trainer = small_trainer()
    trainer.args = SimpleNamespace(
        output_dir=str(tmp_path), ddp_timeout=60, load_best_model_at_end=False, save_strategy="steps"
    )
    trainer.is_deepspeed_enabled = options.pop("deepspeed", False)
    trainer.args.load_best_model_at_end = options.pop("load_best", False)
    trainer.callback_handler, trainer._metrics = SimpleNamespace(callbacks=[]), {"train": Lists()}
    trainer.is_world_process_zero = lambda: True
    callback = Scripted(trainer, script, teachers, pass_rates=pass_rates)
    schedule = ScriptedSchedule(callback, **options)
    trainer.callback_handler.callbacks += [callback, schedule]
    return schedule


class Lists(dict):
    def __missing__(self, key):
        return self.setdefault(key, [])


def play(schedule, steps, *, begin=0):
    """Steps of a training, until the schedule stops it."""
    state = SimpleNamespace(global_step=begin, max_steps=1000, is_world_process_zero=True)
    control = SimpleNamespace(should_training_stop=False, should_save=False)
    callbacks = schedule.trainer.callback_handler.callbacks

    def fire(event):
        for each in callbacks:
            getattr(each, event)(schedule.trainer.args, state, control)

    fire("on_train_begin")
    while state.global_step < steps and not control.should_training_stop:
        fire("on_step_begin")
        train(schedule.trainer, [state.global_step])
        state.global_step += 1
        fire("on_step_end")
    return SimpleNamespace(state=state, control=control, fire=fire)


def test_a_full_disk_costs_a_snapshot_and_nothing_else(tmp_path, caplog):
    schedule = scripted(tmp_path, {0: 0.4, 1: 0.4})
    play(schedule, 1)
    with FullDisk(), caplog.at_level(logging.WARNING):
        schedule._snapshot(2)
    assert "No snapshot at step 2 to return to" in caplog.text
    assert schedule.snapshots.steps == (0, 1)
    assert sorted(path.name for path in schedule.snapshots.folder.rglob("*") if path.is_file()) == ["rank-0.pt"] * 2


def test_snapshots_stay_within_their_limit_while_evaluations_fail(tmp_path):
    schedule = scripted(tmp_path, {0: 0.4, 1: 0.4} | dict.fromkeys(range(2, 12)), max_snapshots=3)
    play(schedule, 11)
    assert schedule.snapshots.steps == (0, 1, 11), "those with a known alignment, and the latest"


def test_a_snapshot_that_waits_for_its_evaluation_stays(tmp_path):
    snapshots = WeightSnapshots(small_trainer(), tmp_path, limit=3)
    for step in (0, 20, 40, 60):
        snapshots.take(step)
    snapshots.keep({0: 1.0, 20: 2.0}, latest=2)
    assert snapshots.steps == (20, 40, 60)


def test_one_teacher_without_readings_keeps_the_others_going(tmp_path):
    bad = readings(-0.4, -0.4, -0.4)
    assert (judge([bad]).level, judge([bad, []]).level, judge([bad, []]).value) == ("harms", "unsure", 1)
    both = {"teacher": -0.5, "other": -0.5}
    script = {0: {"teacher": -0.5}, 1: both, 2: both}
    schedule = scripted(tmp_path, script, teachers=("teacher", "other"), on_harm="stop")
    play(schedule, 10)
    assert schedule.ended_at == 2


@pytest.mark.parametrize("on_harm", ["stop", "rollback", "zero"])
def test_a_teacher_that_cannot_be_measured_does_not_disable_the_schedule(on_harm, tmp_path, caplog):
    script = {step: {"teacher": 0.5 if step < 3 else -0.5} for step in range(12)}
    schedule = scripted(tmp_path, script, teachers=("teacher", "other"), on_harm=on_harm)
    play(schedule, 10)
    alone = scripted(tmp_path, script, teachers=("teacher",), on_harm=on_harm)
    play(alone, 10)
    assert (schedule.strength, schedule.ended_at, schedule.returned_to) == (0, alone.ended_at, alone.returned_to)
    message = "2 evaluations could not measure teacher 'other': the schedule follows the others until one does"
    assert caplog.messages.count(message) == 1
    back = scripted(
        tmp_path, {**script, 10: {"teacher": -0.5, "other": 0.5}}, teachers=("teacher", "other"), on_harm="zero"
    )
    play(back, 10)
    assert back.strength == 1, "it is measured after all, and helps"


def test_one_reading_does_not_end_a_training(tmp_path):
    schedule = scripted(tmp_path, {0: -0.5, 1: nan, 3: -0.5}, on_harm="stop")
    played = play(schedule, 10)
    assert schedule.ended_at == played.state.global_step == 3, "an unknown one does not count"
    assert schedule.trainer._metrics["train"]["schedule/strength"] == [1, 1, 0]
    held = scripted(tmp_path, {0: -0.5}, on_harm="zero")
    play(held, 1)
    assert held.strength == 0, "this can be taken back"


def test_after_a_rollback_completions_and_weights_of_vllm_are_old(tmp_path):
    schedule = scripted(tmp_path, {0: 0.4, 1: 0.4, 2: 0.4, 3: -0.5, 4: -0.5, 5: -0.5})
    trainer = schedule.trainer
    trainer.use_vllm, trainer.vllm_generation, trainer._last_loaded_step, trainer._buffered_inputs = (
        True, SimpleNamespace(mode="server"), 4, [1, 2],
    )  # fmt: skip
    play(schedule, 10)
    assert schedule.returned_to == 2
    assert (trainer._last_loaded_step, trainer._buffered_inputs) == (-1, None)
    plain = SimpleNamespace()
    discard_generated(plain)
    assert not vars(plain), "nothing is added"


def test_a_rollback_that_fails_stops_with_the_present_weights(tmp_path, caplog):
    script = {0: 0.4, 1: 0.4, 2: 0.4, 3: -0.5, 4: -0.5, 5: -0.5}
    schedule = scripted(tmp_path, script)
    played = play(schedule, 2)
    (schedule.snapshots.folder / "step-000002" / "rank-0.pt").write_bytes(b"cut")
    while not played.control.should_training_stop:
        train(schedule.trainer, [played.state.global_step])
        played.state.global_step += 1
        before = weights(schedule.trainer)
        played.fire("on_step_end")
    assert "Cannot return to the weights of step 2, the present ones stay" in caplog.text
    assert "rank-0.pt is missing or damaged" in caplog.text
    assert "weights_only" not in caplog.text
    assert (schedule.returned_to, played.control.should_save) == (None, True)
    assert all(torch.equal(*each) for each in zip(before, weights(schedule.trainer), strict=True))
    played.fire("on_train_end")
    assert schedule.snapshots.folder.is_dir(), "left for whoever looks for the cause"


def test_snapshots_of_another_training_are_not_returned_to(tmp_path, caplog):
    other = WeightSnapshots(small_trainer(), tmp_path)
    other.begin(0, "first")
    for step in (0, 20):
        other.take(step)
    (tmp_path / "step-000010").mkdir()
    (tmp_path / "step-000010" / "rank-0.pt").write_bytes(b"cut")
    (tmp_path / "step-000010" / "rank-0.new").write_bytes(b"cut")
    same = WeightSnapshots(small_trainer(), tmp_path)
    same.begin(20, "first")
    assert same.steps == (0, 20)
    assert "cannot be read, of step 10" in caplog.text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000", "step-000020"]
    same.run = "second"
    with pytest.raises(OpdAlignError, match="of another training"):
        same.restore(20)
    resumed = WeightSnapshots(small_trainer(), tmp_path)
    resumed.begin(20, "second")
    assert resumed.steps == ()


@pytest.mark.parametrize("part", ["weights", "optimizer"])
def test_other_shapes_are_refused_before_anything_changes(part, tmp_path):
    trainer = small_trainer()
    train(trainer, range(2))
    snapshots = WeightSnapshots(trainer, tmp_path, place="memory")
    snapshots.take(0)
    content = snapshots._in_memory[0]
    if part == "weights":
        content["weights"][-1] = torch.zeros(7)
    else:
        content["optimizer"][-1]["exp_avg"] = torch.zeros(7)
    train(trainer, range(2, 4))
    before = weights(trainer)
    with pytest.raises(OpdAlignError, match="of other shapes"):
        snapshots.restore(0)
    assert all(torch.equal(*each) for each in zip(before, weights(trainer), strict=True))


def test_no_process_writes_before_all_have_cleaned_up(tmp_path, monkeypatch):
    stages = []
    snapshots = WeightSnapshots(small_trainer(), tmp_path)
    snapshots.take(5)

    def meet(work, stage):
        work()
        stages.append((stage, snapshots.steps))

    monkeypatch.setattr(weight_snapshots, "on_all_ranks", meet)
    snapshots.begin(0, "run")
    assert stages == [("looking for snapshots", ())]


def test_snapshots_are_removed_once_nothing_can_return_to_them(tmp_path):
    schedule = scripted(tmp_path, {0: 0.4, 1: 0.4})
    played = play(schedule, 3)
    played.fire("on_train_end")
    assert schedule.snapshots.steps == (0, 1), "another callback stopped it: it may be resumed"
    played.state.max_steps = 3
    played.fire("on_train_end")
    assert schedule.snapshots.steps == ()
    assert not schedule.snapshots.folder.exists()


def test_deepspeed_never_trains_at_a_strength_that_is_not_applied(tmp_path, monkeypatch):
    with pytest.raises(OpdAlignError, match="when='harms' is not supported under DeepSpeed"):
        scripted(tmp_path, {}, deepspeed=True, on_harm="stop", when="harms")
    schedule = scripted(tmp_path, {0: -0.5, 1: -0.5}, deepspeed=True, on_harm="stop")
    played = play(schedule, 5)
    assert schedule.ended_at == played.state.global_step == 1
    stored = {"ended_at": 1, "readings": []}
    monkeypatch.setattr("opd_align.training.alignment_schedule.load_json", lambda *_: stored)
    with pytest.raises(OpdAlignError, match="ended by its AlignmentSchedule at step 1, so there is nothing to resume"):
        play(scripted(tmp_path, {}, deepspeed=True, on_harm="stop"), 5, begin=1)


def test_under_deepspeed_a_late_reading_acts_after_the_step(tmp_path):
    schedule = scripted(tmp_path, {0: -0.5, 1: -0.5}, deepspeed=True, on_harm="stop")
    schedule.trainer.callback_handler.callbacks.reverse()  # the callback evaluates after the schedule has looked
    played = play(schedule, 1)
    played.fire("on_step_begin")
    assert (schedule.level, schedule.strength, schedule.ended_at) == ("harms", 1, None)
    played.state.global_step += 1
    played.fire("on_step_end")
    assert (schedule.ended_at, played.control.should_training_stop) == (2, True)
    assert schedule.trainer._metrics["train"]["schedule/strength"] == [1, 0], "1: the step was made"


def test_a_callback_that_was_not_added_is_noticed(tmp_path):
    schedule = scripted(tmp_path, {})
    schedule.trainer.callback_handler.callbacks.remove(schedule.callback)
    with pytest.raises(OpdAlignError, match="was not added to the trainer"):
        play(schedule, 1)
    schedule = scripted(tmp_path, {})
    schedule.trainer.callback_handler.callbacks.remove(schedule)
    with pytest.raises(OpdAlignError, match="callback of another trainer"):
        schedule.on_train_begin(schedule.trainer.args, SimpleNamespace(global_step=0), None)


def test_the_best_model_at_the_end_would_undo_a_rollback(tmp_path):
    with pytest.raises(OpdAlignError, match="load_best_model_at_end=True would replace the weights"):
        scripted(tmp_path, {}, load_best=True)
    assert scripted(tmp_path, {}, load_best=True, on_harm="stop").strength == 1


# -- a schedule that follows the pass rate


def rates_of(*means, questions=16):
    """Pass rates by step: questions differ by much, evaluations of the same question by little."""
    hard = [0.2 * (i % 3 - 1) for i in range(questions)]
    return {
        step: {f"q{i}": min(max(mean + hard[i] + 0.01 * ((i + step) % 4 - 1.5), 0.0), 1.0) for i in range(questions)}
        for step, mean in enumerate(means)
    }


HELPS = dict.fromkeys(range(12), 0.5)
"""Readings of an alignment that never gives a reason to end."""


@pytest.mark.parametrize("place", ["disk", "memory"])
def test_it_returns_to_the_largest_pass_rate(place, tmp_path, caplog):
    rates = rates_of(0.5, 0.55, 0.6, 0.6, 0.58, 0.4)
    schedule = scripted(tmp_path, HELPS, pass_rates=rates, follow="pass_rate", snapshots=place)
    with caplog.at_level(logging.WARNING):
        played = play(schedule, 10)
    assert schedule.ended_at == played.state.global_step == 5
    assert schedule.returned_to == max(rates, key=lambda step: sum(rates[step].values())) in (2, 3)
    twin = small_trainer()
    train(twin, range(schedule.returned_to))
    assert all(torch.equal(*each) for each in zip(weights(schedule.trainer), weights(twin), strict=True))
    assert "The student has become worse: its pass rate is 0.39, and was 0.59 at step 2 on the same" in caplog.text
    assert "where the pass rate says that the student was best; ending the training" in caplog.text
    assert schedule.trainer._metrics["train"]["schedule/strength"] == [1, 1, 1, 1, 0]


def test_alignment_does_not_end_a_training_that_follows_the_pass_rate(tmp_path):
    harms = dict.fromkeys(range(12), -0.5)
    schedule = scripted(tmp_path, harms, pass_rates=rates_of(*[0.5] * 12), follow="pass_rate", on_harm="stop")
    assert play(schedule, 10).state.global_step == 10
    assert (schedule.strength, schedule.level, schedule.ended_at) == (1, "harms", None)


def test_the_best_snapshots_by_pass_rate_are_kept(tmp_path):
    rates = rates_of(0.5, 0.53, 0.51, 0.5, 0.505, 0.5)
    schedule = scripted(tmp_path, HELPS, pass_rates=rates, follow="pass_rate", max_snapshots=3)
    play(schedule, 5)
    assert schedule.snapshots.steps == (1, 2, 5)


def test_evaluations_that_fail_or_cannot_be_graded_do_not_count(tmp_path):
    rates = rates_of(0.6, 0.6, 0.6, 0.6, 0.3)
    rates[2] = dict.fromkeys(rates[2], nan)
    schedule = scripted(tmp_path, HELPS | {1: None}, pass_rates=rates, follow="pass_rate", on_harm="stop")
    play(schedule, 10)
    assert schedule.ended_at == 4
    assert [each.step for each in schedule.pass_rates.evaluations] == [0, 2, 3, 4]
    assert schedule.pass_rates.evaluations[1].by_question == {}
    assert set(schedule.pass_rates.means([0, 2, 3])) == {0, 3}


def test_a_resumed_training_knows_the_pass_rates_before_it(tmp_path):
    rates = rates_of(0.5, 0.7, 0.69, 0.3)
    schedule = scripted(tmp_path, HELPS, pass_rates=rates, follow="pass_rate")
    played = play(schedule, 2)
    (tmp_path / "checkpoint-2").mkdir()
    played.fire("on_save")
    resumed = scripted(tmp_path, HELPS, pass_rates=rates, follow="pass_rate")
    resumed.run = schedule.run
    train(resumed.trainer, range(2))
    play(resumed, 10, begin=2)
    assert (resumed.ended_at, resumed.returned_to) == (3, 1)
    assert [each.step for each in resumed.pass_rates.evaluations] == [0, 1, 2, 3]
