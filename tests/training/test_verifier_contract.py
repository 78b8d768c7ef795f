"""The verifier contract: every rule holds for every user of a verifier."""

from __future__ import annotations

import asyncio
import math
import threading
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from support.gated_runs import distillation, gkd, grpo, models
from support.trainings import TINY, held_out, make

from opd_align import AlignmentCallback
from opd_align.backends.chat import Chat
from opd_align.backends.loading import load_tokenizer
from opd_align.tasks import TextGrader, task
from opd_align.training import (
    DivergenceAbove,
    FunctionGate,
    GatedDistillationTrainer,
    GatedGKDTrainer,
    GatedGRPOTrainer,
    IncorrectOnly,
    SDPOGate,
    SignAgrees,
)
from opd_align.training.distributed import EvaluationFailed
from opd_align.training.gate_runtime import GateRuntime
from opd_align.training.held_out import MAX_CONSECUTIVE_FAILURES, HeldOut
from opd_align.training.rewards import RewardVerifier
from opd_align.types import OpdAlignError, Outcome, Question, Rollouts

UNKNOWN, INCORRECT, CORRECT = Outcome.UNKNOWN, Outcome.INCORRECT, Outcome.CORRECT
ARITHMETIC = task("arithmetic")
COMPLETIONS = ["Answer: 1", "Answer: 2", "Answer: 1"]
COLUMNS = {"answer": ["1", "1", "1"]}

pytestmark = [pytest.mark.filterwarnings("ignore")]


# Users: from a verifier and its options to the outcomes of three completions, and the number of failed calls


def called_directly(verifier, **options):
    reward = RewardVerifier(verifier, **options)
    return reward.outcomes(["q"] * 3, COMPLETIONS, COLUMNS), reward.failures


def by_the_callback(verifier, **options):
    chat = Chat(load_tokenizer("embedded:student"))
    questions = HeldOut.of([Question("q", "How many?", "1")], verifier, **options)
    rollouts = Rollouts.of([chat.tokenizer(text)["input_ids"] for text in COMPLETIONS])
    outcomes = questions.grader(chat, [chat.tokenizer.eos_token_id]).grade(questions.questions[0], rollouts)
    return outcomes.tolist(), questions.verifier.failures


def started(gate, **options):
    if "timeout_s" in options:
        options["verifier_timeout_s"] = options.pop("timeout_s")
    model = torch.nn.Linear(1, 1)
    trainer = SimpleNamespace(
        accelerator=Accelerator(cpu=True), model=model, teacher_model=model, add_callback=lambda callback: None
    )
    return GateRuntime(gate, "keep", **options).attach(trainer)


def by_a_gate(make_gate):
    def outcomes(verifier, **options):
        runtime = started(make_gate(verifier), **options)
        outcome_B = runtime.outcomes(["q"] * 3, COMPLETIONS, COLUMNS, torch.zeros(3).bool())
        return outcome_B.tolist(), runtime.verifier.failures

    return outcomes


def as_a_grpo_reward(verifier, **options):
    runtime = started(IncorrectOnly(verifier, unknown="keep"), **options)
    (reward,) = runtime.wrap_reward_funcs([verifier])
    assert not asyncio.iscoroutinefunction(reward)
    reward(prompts=["q"] * 3, completions=COMPLETIONS, **COLUMNS)
    outcome_B = runtime.outcomes(["q"] * 3, COMPLETIONS, COLUMNS, torch.zeros(3).bool())
    assert runtime.verifier.calls == 1, "one call for reward and gate"
    return outcome_B.tolist(), runtime.verifier.failures


def sdpo_gate(verifier, **options):
    """A gate as if it were attached to a trainer."""
    gate = SDPOGate(verifier, unknown="keep", **options)
    gate._trainer = SimpleNamespace(model=torch.nn.Linear(1, 1))
    return gate


def by_sdpo(verifier, **options):
    if "timeout_s" in options:
        options["verifier_timeout_s"] = options.pop("timeout_s")
    gate = sdpo_gate(verifier, **options)
    gate.reward(prompts=["q"] * 3, completions=COMPLETIONS, **COLUMNS)
    return gate._outcomes, gate.verifier.failures


USERS = {
    "RewardVerifier": called_directly,
    "callback": by_the_callback,
    "IncorrectOnly": by_a_gate(lambda verifier: IncorrectOnly(verifier, unknown="keep")),
    "SignAgrees": by_a_gate(lambda verifier: SignAgrees(verifier, unknown="drop")),
    "FunctionGate": by_a_gate(lambda verifier: FunctionGate(lambda batch: batch.mask_BT, "mine", verifier=verifier)),
    "Product": by_a_gate(lambda verifier: IncorrectOnly(verifier, unknown="keep") * DivergenceAbove(threshold=0.1)),
    "GRPO reward": as_a_grpo_reward,
    "SDPO": by_sdpo,
}
EVERY_USER = pytest.mark.parametrize("outcomes", USERS.values(), ids=USERS.keys())


# Rules


def returning(*values):
    def verifier(prompts, completions, **columns):
        return list(values)

    return verifier


def awaiting(*values):
    async def verifier(prompts, completions, **columns):
        await asyncio.sleep(0)
        return list(values)

    return verifier


class AwaitedCall:
    async def __call__(self, prompts, completions, **columns):
        return [1.0, 0.0, None]


def raising(**columns):
    raise ZeroDivisionError("on purpose")


async def raising_later(**columns):
    await asyncio.sleep(0)
    raise ZeroDivisionError("on purpose")


def hanging(**columns):
    threading.Event().wait(30)


async def hanging_later(**columns):
    await asyncio.sleep(30)


SHORT = {"timeout_s": 0.2}
RULES = {
    "one and zero": (returning(1, 0, 1.0), {}, [CORRECT, INCORRECT, CORRECT], 0),
    "graded": (returning(0.7, 0.4, 0.5), {}, [CORRECT, INCORRECT, CORRECT], 0),
    "graded, with a limit": (returning(0.7, 0.8, 3), {"correct_from": 0.8}, [INCORRECT, CORRECT, CORRECT], 0),
    "a negative limit": (returning(-2, -1, 0), {"correct_from": -1}, [INCORRECT, CORRECT, CORRECT], 0),
    "None and NaN": (returning(None, math.nan, 1), {}, [UNKNOWN, UNKNOWN, CORRECT], 0),
    "asynchronous": (awaiting(0.7, 0, None), {}, [CORRECT, INCORRECT, UNKNOWN], 0),
    "asynchronous object": (AwaitedCall(), {}, [CORRECT, INCORRECT, UNKNOWN], 0),
    "a task": (ARITHMETIC, {}, [CORRECT, INCORRECT, CORRECT], 0),
    "a task's verifier": (ARITHMETIC.verifier, {}, [CORRECT, INCORRECT, CORRECT], 0),
    "raising": (raising, {}, [UNKNOWN] * 3, 1),
    "raising asynchronously": (raising_later, {}, [UNKNOWN] * 3, 1),
    "hanging": (hanging, SHORT, [UNKNOWN] * 3, 1),
    "hanging asynchronously": (hanging_later, SHORT, [UNKNOWN] * 3, 1),
}


@EVERY_USER
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("in_event_loop", [False, True], ids=["script", "notebook"])
def test_every_rule_holds_for_every_user(rule, outcomes, in_event_loop, caplog):
    verifier, options, expected, failures = RULES[rule]

    async def notebook():
        return outcomes(verifier, **options)

    found = asyncio.run(notebook()) if in_event_loop else outcomes(verifier, **options)
    assert found == (expected, failures)
    assert len([record for record in caplog.records if "returned no values" in record.getMessage()]) == failures


@EVERY_USER
@pytest.mark.parametrize(
    ("verifier", "options", "complaint"),
    [
        ("exact match", {}, "verifier must be a function with TRL's reward signature"),
        (torch.nn.Linear(1, 1), {}, "the verifier is a model"),
        (returning(1.0), {}, "1 values for 3"),
        (returning("yes", 1, 1), {}, "'yes'; expected a number"),
        (returning(1, 1, 1), {"timeout_s": 0}, "positive number of seconds"),
        (returning(1, 1, 1), {"timeout_s": math.inf}, "positive number of seconds"),
        (returning(1, 1, 1), {"correct_from": math.nan}, "correct_from must be a finite number"),
    ],
)
def test_every_user_refuses_what_is_no_verifier(outcomes, verifier, options, complaint):
    with pytest.raises(OpdAlignError, match=complaint):
        outcomes(verifier, **options)


# Rewards of a trainer


def test_a_reward_keeps_its_graded_values():
    """Only the gate compares with `correct_from`; GRPO's advantages come from the values themselves."""
    verifier = returning(0.7, math.nan, 0.2)
    runtime = started(IncorrectOnly(verifier, unknown="keep"), correct_from=0.8)
    reward = runtime.wrap_reward_funcs(verifier)
    assert reward(prompts=["q"] * 3, completions=COMPLETIONS) == [0.7, None, 0.2]
    assert runtime.verifier.latest == [INCORRECT, UNKNOWN, INCORRECT]
    assert sdpo_gate(verifier).reward(["q"] * 3, COMPLETIONS) == [0.7, None, 0.2]


def test_a_task_may_be_a_reward_function():
    other = returning(0.0)
    runtime = started(IncorrectOnly(ARITHMETIC, unknown="keep"))
    first, second = runtime.wrap_reward_funcs([ARITHMETIC, other])
    assert first(prompts=["q"] * 3, completions=COMPLETIONS, **COLUMNS) == [1.0, 0.0, 1.0]
    assert second is other
    assert runtime.verifier_is_reward
    assert started(FunctionGate(lambda batch: batch.mask_BT)).wrap_reward_funcs(ARITHMETIC) is ARITHMETIC.verifier


def test_a_task_and_its_verifier_are_one_verifier():
    both = IncorrectOnly(ARITHMETIC, unknown="keep") * SignAgrees(ARITHMETIC.verifier, unknown="keep")
    assert both.verifier is ARITHMETIC.verifier


# Trainers and callback take the two arguments


@pytest.mark.training
@pytest.mark.parametrize(
    ("run", "kind"),
    [(gkd, GatedGKDTrainer), (distillation, GatedDistillationTrainer), (grpo, GatedGRPOTrainer)],
    ids=["gkd", "distillation", "grpo"],
)
@pytest.mark.parametrize(("options", "expected"), [({}, (1.0, 0.0)), ({"correct_from": 0.8}, (0.0, 0.0))])
def test_gated_trainers_take_graded_asynchronous_verifiers(tmp_path, run, kind, options, expected):
    async def graded(completions, **columns):
        return [0.7] * len(completions)

    own = {"teacher_model": models()["teacher_model"], "reward_funcs": [graded]} if run is grpo else {}
    settings = {"max_steps": 1, **({} if run is gkd else {"max_completion_length": 128})}
    gate = IncorrectOnly(graded, unknown="drop")
    (row,) = run(kind, tmp_path, gate=gate, denominator="keep", options=settings, **options, **own).logs
    assert (row["gate/correct"], row["gate/unknown"]) == expected
    assert row["gate/verifier_failures"] == 0
    if run is grpo:
        assert row["rewards/graded/mean"] == pytest.approx(0.7)


def evaluating(folder, verifier, **options):
    trainer = make("distillation", folder)
    return AlignmentCallback(trainer, held_out(2), verifier, budget=TINY, max_overhead=None, **options)


def test_the_callback_passes_the_limits_on(tmp_path):
    rates = [
        evaluating(tmp_path / name, returning_for_all(0.7), **options).evaluate()[0].questions["pass_rate"].to_pylist()
        for name, options in (("default", {}), ("strict", {"correct_from": 0.8}))
    ]
    assert min(rates[0]) > 0.9
    assert max(rates[1]) == 0
    with pytest.raises(OpdAlignError, match="positive number of seconds"):
        evaluating(tmp_path / "refused", returning_for_all(1.0), verifier_timeout_s=0)


def returning_for_all(value):
    def verifier(completions, **columns):
        return [value] * len(completions)

    return verifier


@pytest.mark.parametrize(
    ("verifier", "reason"), [(raising, "ZeroDivisionError: on purpose"), (hanging, "within 0.2 s")]
)
def test_an_evaluation_whose_verifier_never_returns_fails(tmp_path, verifier, reason):
    callback = evaluating(tmp_path, verifier, verifier_timeout_s=0.2)
    with pytest.raises(EvaluationFailed, match=reason):
        callback.evaluate()
    assert callback.evaluator.held_out.verifier.failures <= MAX_CONSECUTIVE_FAILURES


def test_one_failed_call_leaves_its_rollouts_unknown_and_is_logged(tmp_path, caplog):
    calls = []

    def flaky(completions, **columns):
        calls.append(len(completions))
        if len(calls) == 2:
            raise ConnectionError("the server is away")
        return [1.0] * len(completions)

    callback = evaluating(tmp_path, flaky, every_n_steps=1)
    trainer = callback.adapter.trainer
    callback.on_train_begin(trainer.args, trainer.state, trainer.control)
    (row,) = callback.log_history
    assert (row["opd_align/evaluation/verifier_failures"], row["opd_align/evaluation/failures"]) == (1.0, 0.0)
    assert caplog.text.count("the server is away") == 1
    assert len(calls) > 2


# The callback grades with a task as an analysis does


def test_a_tasks_grades_are_those_of_an_analysis():
    chat = Chat(load_tokenizer("embedded:student"))
    texts = ["Answer: 1", "Answer: 2", "no answer", "", "Answer: 1"]
    end = chat.tokenizer.eos_token_id
    rollouts = Rollouts.of([[*chat.tokenizer(text)["input_ids"], end] for text in texts])
    question = Question("q", "How many?", "1")
    expected = TextGrader(ARITHMETIC, chat.decode, [end])
    held = HeldOut.of([question], ARITHMETIC)
    grader = held.grader(chat, [end])
    assert grader.grade(question, rollouts).tolist() == expected.grade(question, rollouts).tolist()
    assert grader.fingerprint == expected.fingerprint
    strict = HeldOut.of([question], ARITHMETIC, correct_from=2).grader(chat, [end])
    assert strict.fingerprint != expected.fingerprint
