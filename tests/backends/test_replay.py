"""Recorded rollouts in place of a model: the same numbers as the analysis that was recorded, and honest gaps."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.backend_contract import rows_of, tokens
from support.fuzzing import cases, mutated, outcome
from support.recorded_world import node_lines, recorded_analysis, rollout_lines, write_lines

from opd_align import GRPO, Budget, ExactFamily, MiniLLM, OpdAlignError, ReverseKL, Settings, analyze
from opd_align.backends.replay import UNRECORDED, ReplayStudent
from opd_align.backends.replay_file import read_recording
from opd_align.core.alignment import cosine
from opd_align.core.estimate import estimate
from opd_align.core.objectives import unified_update
from opd_align.core.tree import GenerationTree
from opd_align.types import Finish, Outcome, Question, Rollouts, SampleRequest, ScoreRequest

NOTHING = np.empty(0, np.uint32)


def teachers_of(family: ExactFamily) -> list[Any]:
    return [
        family.teacher("tilted", lambda world: world.tilted_teacher()),
        family.teacher("adversarial", lambda world: world.adversarial_teacher()),
    ]


def natural_lines(family: ExactFamily, n: int) -> list[dict[str, Any]]:
    """Rollouts without keys, as another program would write them."""
    lines: list[dict[str, Any]] = [{"end_tokens": [0]}]
    teachers = teachers_of(family)
    for question in family.questions:
        rollouts = family.sample([SampleRequest(question, NOTHING, n)])
        rollouts = replace(rollouts, outcome_R=family.grade(question, rollouts))
        lines += rollout_lines(family, teachers, question, rollouts)
    return [{name: value for name, value in line.items() if name != "key"} for line in lines]


def replayed(file: Path, settings: Settings, **options: Any) -> Any:
    student = ReplayStudent.load(file, **options)
    return analyze(student, student.teachers, student.questions, student, settings=settings)


def assert_same_nodes(one: Any, other: Any) -> None:
    assert one.nodes.num_rows == other.nodes.num_rows > 0
    for column in one.nodes.column_names:
        left, right = (each.nodes[column].to_pylist() for each in (one, other))
        if isinstance(left[0], float):
            np.testing.assert_allclose(np.array(right, float), np.array(left, float), rtol=1e-6, atol=1e-9)
        else:
            assert left == right, column


# -- known answers --------------------------------------------------------------------------------------------


def test_replaying_a_recorded_analysis_at_the_papers_budget_gives_the_same_nodes(tmp_path: Path) -> None:
    family = ExactFamily.random(3, 1, length=14, forks=0.5, vocabulary=12, states=60)
    settings = Settings([ReverseKL(), GRPO()], Budget())
    direct = recorded_analysis(tmp_path / "world.jsonl", family, teachers_of(family), settings)
    again = replayed(tmp_path / "world.jsonl", settings)
    assert direct.questions["targeted"].to_pylist()[0] > 1000
    assert_same_nodes(direct, again)
    # Entropies are lower bounds, and an overlap of the most likely tokens is not recorded.
    unknown = ["student_entropy", "teacher_entropy", "overlap_ratio", "overlap_token_advantage"]
    assert again.questions.drop_columns(unknown).equals(direct.questions.drop_columns(unknown))


def test_other_estimators_use_the_recorded_rollouts_too(tmp_path: Path) -> None:
    family = ExactFamily.random(3, 1, length=14, forks=0.5, vocabulary=12, states=60)
    settings = Settings(budget=Budget(initial=100, n_min=30, by_update=3, by_gap=3))
    recorded_analysis(tmp_path / "world.jsonl", family, teachers_of(family), settings)
    for estimator in ("direct", "pooled"):
        other = replace(settings, estimator=estimator)
        direct = analyze(family, teachers_of(family), family.questions, family, settings=other)
        assert_same_nodes(direct, replayed(tmp_path / "world.jsonl", other, own_token_outcomes=True))


def test_reward_to_go_comes_from_the_recorded_log_probs(tmp_path: Path) -> None:
    family = ExactFamily.random(5, 1, length=12, forks=0.5, vocabulary=12, states=60)
    settings = Settings([MiniLLM()], Budget(initial=150, targeted=0))
    direct = recorded_analysis(tmp_path / "world.jsonl", family, teachers_of(family), settings)
    assert_same_nodes(direct, replayed(tmp_path / "world.jsonl", settings))


def right_verdicts(analysis: Any, family: ExactFamily) -> list[bool]:
    """Whether each verdict has the sign of the truth, once per node and teacher, at tokens that change the outcome."""
    children: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in analysis.children.to_pylist():
        children.setdefault((row["question"], row["path"], row["depth"]), []).append(row)
    right: dict[tuple[Any, ...], bool] = {}
    for node in analysis.nodes.to_pylist():
        at = (node["question"], node["path"])
        own = [next(row["token"] for row in children[(*at, depth)] if row["own"]) for depth in range(node["depth"])]
        kept = [row for row in children[(*at, node["depth"])] if row["significant"]]
        q = family.worlds[node["question"]].exact_q(np.array(own, np.uint32))[[row["token"] for row in kept]]
        if node["verdict"] == "undecided" or np.ptp(q) < 0.01:
            continue
        teacher = ["tilted", "adversarial"].index(node["teacher"])
        p, t = (np.array(values) for values in ([row["p"] for row in kept], [row["t"][teacher] for row in kept]))
        p, t = p / p.sum(), t / t.sum()
        truth = cosine(unified_update(p, q), unified_update(p, np.log(t) - np.log(p)))
        right[node["question"], tuple(own), node["teacher"]] = bool((truth > 0) == (node["verdict"] == "helpful"))
    return [*right.values()]


def test_natural_rollouts_alone_are_right_where_they_are_certain(tmp_path: Path) -> None:
    family = ExactFamily.random(600, 12, length=60, stakes=2.0, vocabulary=12, states=60)
    file = write_lines(tmp_path / "natural.jsonl", natural_lines(family, 200))
    settings = Settings(budget=Budget(initial=200, targeted=0), estimator="direct")
    analysis = replayed(file, settings)
    # Nothing is judged where a rollout is on its own.
    significant = [row for row in analysis.children.to_pylist() if row["significant"]]
    assert min(row["visits"] for row in significant) >= settings.rules.n_sig
    right = right_verdicts(analysis, family)
    assert len(right) >= 10
    assert np.mean(right) >= 0.9


def test_outcomes_without_continuations_count_at_their_branch(tmp_path: Path) -> None:
    """A dump of forced branches, as in `question, prefix, token, p, outcomes`: no tokens after the branch are known."""
    family = ExactFamily.random(7, 1, length=14, forks=0.5, vocabulary=12, states=60)
    (question,) = family.questions
    lines = natural_lines(family, 20)
    path = np.array(next(line for line in lines[1:] if line["outcome"] == 1)["tokens"], np.uint32)
    nodes = node_lines(family, teachers_of(family), question, [path])
    for line in nodes:
        forced = [*line["prefix"], line["token"]]
        if line["token"] and line["p"] > 0.02:
            sampled = family.sample([SampleRequest(question, np.array(forced, np.uint32), 40, first=1000)])
            line["outcomes"] = family.grade(question, sampled).tolist()
    file = write_lines(tmp_path / "branches.jsonl", lines + nodes)
    recorded = {(len(line["prefix"]), line["token"]): line["outcomes"] for line in nodes if line.get("outcomes")}
    paper = Budget(initial=20, allocation="paper", n_min=60, correct_paths=1, incorrect_paths=0, by_update=500)
    settings = Settings(budget=paper)

    analysis = replayed(file, replace(settings, estimator="direct"), own_token_outcomes=True)
    rows = [row for row in analysis.children.to_pylist() if row["token"] and row["p"] > 0.02]
    own = [next(row["token"] for row in rows if row["own"] and row["depth"] == depth) for depth in range(5)]
    assert own == path[:5].tolist()  # the rollout with branches is the one that is analyzed
    natural = [line for line in lines[1:] if line["tokens"]]
    natural.remove(next(line for line in natural if line["tokens"] == path.tolist()))  # chosen for its outcome
    for row in rows:
        outcomes = recorded[row["depth"], row["token"]]
        prefix = [*path[: row["depth"]].tolist(), row["token"]]
        same = [line["outcome"] for line in natural if line["tokens"][: len(prefix)] == prefix]
        served = outcomes[: row["visits"] - len(same)]  # as many as the plan asked for
        assert 20 <= len(served) <= 40
        assert row["q"] == pytest.approx(np.mean([*same, *served]))

    # `backup` values the path by its exits; outcomes after the path's own token would look like exits.
    student = ReplayStudent.load(file)
    backup = analyze(student, student.teachers, student.questions, student, settings=settings)
    request = SampleRequest(question, path[:3], 5)
    assert len(student.sample([request])) == 0
    truth = family.worlds[question.id]
    errors = [
        row["q"] - truth.exact_q(path[: row["depth"]])[row["token"]]
        for row in backup.children.to_pylist()
        if row["p"] > 0.02
    ]
    assert np.sqrt(np.mean(np.square(errors))) < 0.08


# -- what is served -------------------------------------------------------------------------------------------

VALID = [
    {"end_tokens": [0], "tokenizer": "letters"},
    {"question": "q", "tokens": [1, 2, 0], "outcome": 1, "log_probs": [-0.5, -0.1, -0.2],
     "teacher_log_probs": {"big": [-0.4, -0.3, -0.1]}, "prompt": [5, 6], "text": "?", "answer": "!"},
    {"question": "q", "tokens": [3, 2], "outcome": False, "truncated": True, "log_probs": [-1.2, -0.3],
     "teacher_log_probs": {"big": [-1.1, -0.2]}},
    {"question": "q", "tokens": [1, 4, 0], "launch": 2, "outcome": None},
    {"question": "q", "prefix": [1], "token": 4, "p": 0.05, "teacher_p": {"big": 0.0}, "outcomes": [1, 0, True, None]},
    {"question": "r", "tokens": [0], "outcome": 0, "log_probs": [-0.7], "teacher_log_probs": {"big": [-0.7]}},
]  # fmt: skip


def test_requests_are_answered_from_the_file(tmp_path: Path) -> None:
    student = ReplayStudent.load(write_lines(tmp_path / "valid.jsonl", VALID))
    question, other = student.questions
    assert question == Question("q", "?", "!")
    assert [teacher.name for teacher in student.teachers] == ["big"]
    natural = SampleRequest(question, NOTHING, 9)
    rollouts = student.sample([natural, SampleRequest(other, NOTHING, 1)])
    assert rows_of(rollouts) == [(1, 2, 0), (3, 2), (0,)]
    assert rollouts.outcome_R.tolist() == [Outcome.CORRECT, Outcome.INCORRECT, Outcome.INCORRECT]
    assert rollouts.finish_R.tolist() == [Finish.STOPPED, Finish.TRUNCATED, Finish.STOPPED]
    assert not rollouts.failures

    forced = student.sample([SampleRequest(question, tokens(1, 4), 7)])
    assert rows_of(forced) == [(1, 4, 0), *[(1, 4, UNRECORDED)] * 4]
    assert forced.outcome_R.tolist() == [Outcome.UNKNOWN, 1, 0, 1, Outcome.UNKNOWN]
    assert forced.launch_R.tolist() == [2] * 5
    assert [failure.reason for failure in forced.failures] == ["not recorded"] * 2
    later = student.sample([SampleRequest(question, tokens(1, 4), 2, first=2)])
    assert later.key_R.tolist() == forced.key_R[2:4].tolist()
    assert later.outcome_R.tolist() == [0, 1]
    assert student.keys([natural])[0][:2].tolist() == rollouts.key_R[:2].tolist()
    assert len(student.sample([SampleRequest(question, tokens(9), 1)])) == 0
    with pytest.raises(OpdAlignError, match="question 'x' is not in"):
        student.sample([SampleRequest(Question("x"), NOTHING, 1)])


def test_probabilities_come_from_rollouts_and_branches(tmp_path: Path) -> None:
    student = ReplayStudent.load(write_lines(tmp_path / "valid.jsonl", VALID))
    request = ScoreRequest(student.questions[0], tokens(1, 2, 0), np.empty(0, np.int64), NOTHING, 0.02)
    scores = student.score(request, student.teachers)
    assert scores.token_C.tolist() == [1, 3, 2, 4, 0]
    assert scores.offsets.tolist() == [0, 2, 4, 5]
    np.testing.assert_allclose(scores.log_p_C, [-0.5, -1.2, -0.1, np.log(0.05), -0.2])
    np.testing.assert_allclose(scores.teachers["big"].log_t_C, [-0.4, -1.1, -0.3, -np.inf, -0.1])
    p = np.exp([-0.5, -1.2])
    rest = 1 - p.sum()
    assert scores.entropy_T[0] == pytest.approx(-(p * np.log(p)).sum() - rest * np.log(rest))
    assert scores.teachers["big"].kl_T[1] == np.inf  # the teacher never says token 4
    flat = student.token_log_probs(student.questions[0], Rollouts.of([[3, 2], [1, 4]]), student.teachers[0])
    np.testing.assert_allclose(flat, [-1.1, -0.2, -0.4, -np.inf])
    with pytest.raises(OpdAlignError, match="token 7 at position 1, whose probability is not recorded"):
        student.token_log_probs(student.questions[0], Rollouts.of([[1, 7]]), None)


def test_an_end_at_a_node_has_the_outcome_of_the_same_completion(tmp_path: Path) -> None:
    end = {"question": "q", "prefix": [1, 2, 5], "token": 0, "p": 0.1, "teacher_p": {"big": 0.1}, "outcomes": [None, 1]}
    student = ReplayStudent.load(write_lines(tmp_path / "valid.jsonl", [*VALID, end]))
    ends = Rollouts.of([[1, 2, 0], [1, 2, 5, 0], [1, 0]], launch=[3, 4, 2])
    assert student.grade(student.questions[0], ends).tolist() == [1, 1, Outcome.UNKNOWN]


# -- bad files ------------------------------------------------------------------------------------------------


def changed(number: int, **fields: Any) -> list[dict[str, Any]]:
    lines = [dict(line) for line in VALID]
    lines[number - 1] = {name: value for name, value in (lines[number - 1] | fields).items() if value != "DROP"}
    return lines


BAD = {
    "missing outcome": (changed(2, outcome="DROP"), r"line 2: outcome is missing"),
    "missing p": (changed(5, p="DROP"), r"line 5: p is missing"),
    "missing prefix": (changed(5, prefix="DROP"), r"line 5: prefix is missing"),
    "missing question": (changed(3, question="DROP"), r"line 3: question is missing"),
    "no tokens": (changed(3, tokens="DROP"), r"line 3: neither tokens .* nor prefix and token"),
    "empty": (changed(2, tokens=[]), r"line 2: tokens is empty"),
    "negative id": (changed(2, tokens=[1, -2, 0]), r"line 2: tokens: -2 is not a token id; ids range from 0 to"),
    "large id": (changed(5, token=2**31), r"line 5: token: 2147483648 is not a token id"),
    "float id": (changed(2, tokens=[1, 2.0, 0]), r"line 2: tokens: 2\.0 is not a token id"),
    "boolean id": (changed(5, prefix=[True]), r"line 5: prefix: True is not a token id"),
    "text": (changed(2, tokens="The"), r"line 2: tokens must be a list of token ids, not 'The'"),
    "p zero": (changed(5, p=0), r"line 5: p must be a probability in \(0, 1\], not 0"),
    "p above one": (changed(5, p=1.01), r"line 5: p must be a probability in \(0, 1\], not 1\.01"),
    "p nan": (changed(5, p=float("nan")), r"line 5: p must be a probability"),
    "teacher p": (changed(5, teacher_p={"big": -0.1}), r"line 5: teacher_p of 'big' must be a probability"),
    "outcome reward": (changed(2, outcome=0.5), r"line 2: outcome: 0\.5 is not an outcome; use 1 or true"),
    "outcome text": (changed(5, outcomes=[1, "1"]), r"line 5: outcomes: '1' is not an outcome"),
    "outcome -1": (changed(5, outcomes=[-1]), r"line 5: outcomes: -1 is not an outcome"),
    "duplicate branch": ([*VALID, VALID[4]], r"line 7: the same question, prefix and token are on line 5"),
    "mixed tokenizers": (changed(6, tokenizer="words"), r"line 6: tokenizer is 'words', but 'letters' on line 1"),
    "log-probs length": (changed(2, log_probs=[-1.0]), r"line 2: log_probs must have one .* of the 3 tokens, not 1"),
    "log-probs positive": (changed(2, log_probs=[-1, 0.4, -1]), r"line 2: log_probs: 0\.4 is not a log-probability"),
    "log-probs infinite": (changed(2, log_probs=[-1, -np.inf, -1]), r"line 2: log_probs: -inf is not"),
    "log-probs null": (changed(2, log_probs=[-1, None, -1]), r"line 2: log_probs: None is not a number"),
    "launch": (changed(4, launch=3), r"line 4: launch must be a whole number from 0 to 2"),
    "truncated": (changed(3, truncated="yes"), r"line 3: truncated must be true or false"),
    "not truncated": (changed(3, truncated=False), r"line 3: tokens end with 2, which is no end-of-sequence token"),
    "truncated end": (changed(2, truncated=True), r"line 2: truncated is true, but tokens end with an end-of-seq"),
    "after the end": (changed(2, tokens=[1, 0, 0]), r"line 2: tokens continue after the end-of-sequence token at pos"),
    "prefix with end": (changed(5, prefix=[0]), r"line 5: prefix contains an end-of-sequence token"),
    "other prompt": (changed(3, prompt=[7]), r"line 3: prompt differs .* on line 2"),
    "key": ([*VALID, VALID[5] | {"key": 4}, VALID[5] | {"key": 4}], r"line 8: key 4 is also on line 7"),
    "only branches": ([*VALID, VALID[4] | {"question": "s"}], r"line 7: question 's' has no natural rollout"),
    "late settings": ([*VALID, {"end_tokens": [0]}], r"line 7: question is missing; only the first line"),
    "temperature": ([{"temperature": 0}], r"line 1: temperature must be a number above 0"),
    "a list": ([[1, 2]], r"line 1: expected an object with named fields"),
    "id": (changed(2, question=7), r"line 2: question must be the question's id as text, not 7"),
    "reserved teacher": (changed(2, teacher_log_probs={"reward": [0, 0, 0]}), r"'reward' cannot be the name"),
    "nothing": ([], r"there are no rollouts"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_rejected_with_the_line(name: str, tmp_path: Path) -> None:
    lines, message = BAD[name]
    file = write_lines(tmp_path / "bad.jsonl", lines)
    with pytest.raises(OpdAlignError, match=message) as error:
        read_recording(file)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (changed(2, log_probs="DROP"), r"line 2: log_probs is missing: .* \(--student MODEL\)"),
        (changed(3, teacher_log_probs="DROP"), r"line 3: teacher_log_probs has no 'big', which other lines have"),
        (changed(5, teacher_p="DROP"), r"line 5: teacher_p has no 'big'"),
        (
            [*VALID, VALID[1] | {"log_probs": [-2.5, -0.1, -0.2]}],
            r"line 7: token 1 at position 0 has probability 0\.0821, but 0\.607 on line 2 .* one checkpoint",
        ),
    ],
)
def test_an_analysis_without_models_needs_consistent_probabilities(
    lines: list[Any], message: str, tmp_path: Path
) -> None:
    recording = read_recording(write_lines(tmp_path / "file.jsonl", lines))
    with pytest.raises(OpdAlignError, match=message):
        ReplayStudent(recording)


def test_probabilities_that_exceed_one_are_rejected(tmp_path: Path) -> None:
    more = VALID[4] | {"prefix": [], "token": 6, "p": 0.9}
    student = ReplayStudent.load(write_lines(tmp_path / "file.jsonl", [*VALID, more]))
    request = ScoreRequest(student.questions[0], tokens(1, 2, 0), np.empty(0, np.int64), NOTHING, 0.02)
    with pytest.raises(OpdAlignError, match=r"'q': the probabilities at position 0 of a rollout add up to 1\.81"):
        student.score(request, student.teachers)


def test_fields_of_other_tools_are_ignored_but_misspelled_ones_are_not(tmp_path: Path) -> None:
    read_recording(write_lines(tmp_path / "a.jsonl", changed(2, step=10, reward=0.3, advantage=None)))
    with pytest.raises(OpdAlignError, match=r"line 2: unknown field 'logprobs'; did you mean 'log_probs'\?"):
        read_recording(write_lines(tmp_path / "b.jsonl", changed(2, log_probs="DROP", logprobs=[-1, -1, -1])))


@pytest.mark.parametrize("content", [b'{"question"', b"\xff\xfe", b"[" * 100_000, b"1" * 5000, b'{"a": 1, "a": 2}'])
def test_files_that_are_not_json_lines_are_rejected(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "file.jsonl"
    file.write_bytes(json.dumps(VALID[0]).encode() + b"\n" + content + b"\n")
    with pytest.raises(OpdAlignError, match=r"file\.jsonl, line 2"):
        read_recording(file)
    with pytest.raises(OpdAlignError, match=r"cannot be read: No such file"):
        read_recording(tmp_path / "missing.jsonl")


def test_mutated_files_are_read_or_rejected_in_one_line(tmp_path: Path) -> None:
    text = "".join(f"{json.dumps(line)}\n" for line in VALID).encode()
    pieces = [
        b"[",
        b"]",
        b"null",
        b"-1",
        b"1e999",
        b"NaN",
        b"true",
        b'"',
        b"{}",
        b"\n",
        b"9" * 30,
        b'"q"',
        b"0.5",
        b",",
    ]
    accepted = 0
    for case in cases(200, 20_000):
        file = tmp_path / "mutated.jsonl"
        file.write_bytes(mutated(text, random.Random(case), pieces))
        student, message = outcome(case, lambda file=file: ReplayStudent.load(file))
        if student is None:
            assert message.startswith(str(file))
            continue
        accepted += 1
        for question in student.questions:
            rollouts = student.sample([SampleRequest(question, NOTHING, 5)])
            path = rollouts.completion(0)
            request = ScoreRequest(question, path, np.empty(0, np.int64), NOTHING, 0.02)
            scores, _ = outcome(case, lambda s=student, r=request: s.score(r, s.teachers))
            if scores is not None:
                graded = replace(rollouts, outcome_R=np.abs(rollouts.outcome_R))
                assert np.isfinite(estimate(GenerationTree.build(graded), [scores])[0].q_C).all()
    assert accepted > 3
