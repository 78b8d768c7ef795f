"""Checks of a setup before a study or a training is started: what is wrong, in one line, and what to do about it.

A check takes objects (student, teachers, completions that the student sampled) and returns findings; it decides what is
acceptable, the measurements are in `backends.probes`. `study.doctor` and `training.doctor` choose the checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from opd_align.backends.chat import Chat
from opd_align.settings import Sampling
from opd_align.teachers.findings import Finding, Level
from opd_align.types import Finish, Grader, OpdAlignError, Outcome, Question, Rollouts, SampleRequest

if TYPE_CHECKING:  # `probes` imports torch
    from opd_align.backends.probes import Gap, Sampled, TopKBias

MAX_TRUNCATED = 0.05
"""Share of truncated completions above which a setup is warned about."""
MAX_TRUNCATED_FAIL = 0.5
MAX_SAMPLING_GAP = 0.05
"""Nats per token by which sampled tokens may be more or less surprising than the scored distribution expects."""
SAMPLING_Z = 4.0
MAX_SERVER_GAP, MAX_SERVER_GAP_FAIL = 0.03, 0.15
"""Mean absolute difference of log-probabilities, in nats: above the first, the precision differs; above the second,
weights or prompts do."""
MIN_LOG_RATIO = -2.0
"""Mean log(teacher/student) per token of the student's completions, in nats."""
MIN_LOG_PROB = float(np.log(1e-3))
"""Median log-probability that a teacher should give the student's first and last tokens."""
MIN_TOP_K_MASS = 0.95
MAX_TOP_K_BIAS = 0.1
"""Relative change of the divergence between half and all of the known tokens."""
MIN_COSINE, MIN_COSINE_FAIL = 0.99, 0.9
MAX_PADDING_MASS = 1e-3

RESPONSES = ("Answer: {}", "The answer is {}.", "\\boxed{{{}}}", "#### {}", "{}")
"""Responses that a verifier should accept, of which it must accept one."""

NO_ANSWER = "I do not know."


# -- prompts and verdicts -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChatSetup:
    """How a model is prompted.

    Args:
        name: The model's name.
        chat: Its tokenizer and chat template.
        end_tokens: The tokens that end its responses.
    """

    name: str
    chat: Chat
    end_tokens: Sequence[int]

    @property
    def generation_prompt(self) -> str:
        """What comes between the user's message and the response."""
        mark = "opd-align"
        return self.chat.render([{"role": "user", "content": mark}]).rpartition(mark)[2]

    @property
    def thinks(self) -> bool:
        """Whether a response begins with thinking, as far as the prompt shows it."""
        prompt = self.generation_prompt
        if self.chat.switch is not None:
            return prompt == replace(self, chat=replace(self.chat, thinking=True)).generation_prompt
        return "<think>" in prompt and "</think>" not in prompt

    def text(self, tokens: Iterable[int]) -> str:
        return " ".join(repr(self.chat.token_text(token)) for token in sorted(tokens)) or "none"


def check_student_chat(student: ChatSetup) -> Finding:
    """The student's prompt and end tokens; whether its template's end of turn ends its responses."""
    template_ends = student.chat.end_of_turn()
    if not template_ends <= {*student.end_tokens}:
        return Finding(
            "FAIL", "chat template",
            f"{student.name} ends a turn with {student.text(template_ends)}, but generation stops only at "
            f"{student.text(student.end_tokens)}: completions run on until they are truncated",
            "add the token to model.generation_config.eos_token_id before the trainer is created",
        )  # fmt: skip
    thinking = ""
    if student.chat.switch is not None:
        given = student.chat.thinking is not None or student.chat.switch in student.chat.options
        thinking = f", thinking {'on' if student.thinks else 'off'}{'' if given else ' by default of the template'}"
    return Finding(
        "OK", "chat template",
        f"{student.name}: the prompt ends with {student.generation_prompt!r}, responses end with "
        f"{student.text(student.end_tokens)}{thinking}",
    )  # fmt: skip


def check_chats_agree(student: ChatSetup, other: ChatSetup) -> Finding:
    """Whether another model expects responses of the student's form: thinking, generation prompt, end tokens."""
    if not {*student.end_tokens} & {*other.end_tokens}:
        return Finding(
            "FAIL", "chat template",
            f"{student.name} ends responses with {student.text(student.end_tokens)}, {other.name} with "
            f"{other.text(other.end_tokens)}: every end of a response counts as a mistake",
            "use a teacher of the same family, or one that was trained with the student's chat template",
        )  # fmt: skip
    if student.thinks != other.thinks:
        on, off = (student, other) if student.thinks else (other, student)
        return Finding(
            "WARN", "chat template",
            f"thinking is on for {on.name} and off for {off.name}: they expect responses of different forms",
            "set thinking to the same value for both models",
        )  # fmt: skip
    if student.generation_prompt != other.generation_prompt:
        return Finding(
            "WARN", "chat template",
            f"the prompt of {student.name} ends with {student.generation_prompt!r}, that of {other.name} with "
            f"{other.generation_prompt!r}",
            "use models with the same chat template, or compare the prompts with opd-align show-prompt",
        )  # fmt: skip
    return Finding("OK", "chat template", f"{other.name}: same generation prompt as {student.name}, shared end token")


def check_verifier(grader: Grader, student: ChatSetup, questions: Sequence[Question]) -> Finding:
    """Whether the verifier accepts each question's own answer in the student's form, and rejects no answer."""
    without = [question.id for question in questions if question.answer is None]
    if len(without) == len(questions):
        return Finding(
            "FAIL", "verifier", f"none of {len(questions)} questions has an answer to compare with",
            "name the column that has it, see docs/own_data.md",
        )  # fmt: skip
    accepted, checked, fooled = [], [], []
    for question in questions:
        if question.answer is None:
            continue
        right = _encoded(student, [form.format(question.answer) for form in RESPONSES])
        if not right:
            continue
        checked.append(question.id)
        outcome_R = grader.grade(question, Rollouts.of(right))
        if (outcome_R == Outcome.CORRECT).any():
            accepted.append(question.id)
        wrong = _encoded(student, [NO_ANSWER])
        if wrong and (grader.grade(question, Rollouts.of(wrong)) == Outcome.CORRECT).any():
            fooled.append(question.id)
    if not checked:
        return Finding("SKIP", "verifier", "not checked: the tokenizer cannot encode the reference answers")
    if fooled:
        return Finding(
            "FAIL", "verifier", f"question {fooled[0]!r}: {NO_ANSWER!r} counts as correct",
            "fix the verifier, or the order of its arguments",
        )  # fmt: skip
    rejected = [name for name in checked if name not in accepted]
    form = "after </think>, " if student.thinks else ""
    if rejected:
        return Finding(
            "WARN" if accepted else "FAIL", "verifier",
            f"{len(rejected)} of {len(checked)} reference answers are not accepted as a response ({form}tried "
            f"{', '.join(form.format('...') for form in RESPONSES)}), such as that of {rejected[0]!r}",
            "check the format of the answers, and that the verifier reads this form of response",
        )  # fmt: skip
    missing = f"; {len(without)} questions without an answer are skipped" if without else ""
    return Finding(
        "WARN" if without else "OK", "verifier",
        f"accepts the reference answers of {len(checked)} questions{' after </think>' if student.thinks else ''} and "
        f"rejects {NO_ANSWER!r}{missing}",
    )  # fmt: skip


def _encoded(student: ChatSetup, responses: Sequence[str]) -> list[list[int]]:
    """Token ids of responses in the student's form; those that the tokenizer cannot represent are left out."""
    before = ""
    if student.thinks:
        opened = "<think>" in student.generation_prompt
        before = f"{'' if opened else '<think>'}\nLet me think.\n</think>\n\n"
    texts = [before + response for response in responses]
    encoded = [student.chat.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    end = student.end_tokens[0]
    return [
        [*ids, end]
        for text, ids in zip(texts, encoded, strict=True)
        if student.chat.decode(ids).strip() == text.strip()
    ]


def check_temperature(
    sampling: Sampling, *, loss_temperature: float | None = None, top_k_teachers: Sequence[str] = ()
) -> list[Finding]:
    """Whether samples, scores and loss belong to the same distribution; `loss_temperature` None: none is known."""
    temperature, findings = sampling.temperature, list[Finding]()

    def add(level: Level, found: str, remedy: str) -> None:
        findings.append(Finding(level, "temperature", found, remedy))

    if top_k_teachers and temperature != 1:
        add(
            "FAIL",
            f"teacher {top_k_teachers[0]!r} is behind a server, which returns probabilities at temperature 1, but the "
            f"student samples at {temperature:g}",
            "sample at temperature 1, or load the teacher here",
        )
    if loss_temperature is not None and loss_temperature != temperature:
        add(
            "WARN",
            f"completions are sampled at {temperature:g}, but the loss is computed at {loss_temperature:g}: its "
            "gradient is not that of the policy that sampled",
            "sample at the temperature of the loss, or use DistillationTrainer, which applies one to both",
        )
    if loss_temperature is None and temperature != 1:
        add(
            "WARN",
            f"student and teachers are compared at temperature {temperature:g}; GKDTrainer computes its loss at 1",
            "sample at 1, or train with a loss at this temperature, as DistillationTrainer does",
        )
    cut = [f"top_p={sampling.top_p:g}"] * (sampling.top_p < 1) + [f"top_k={sampling.top_k}"] * (sampling.top_k > 0)
    if cut:
        add(
            "WARN",
            f"{' and '.join(cut)} cut off tokens that a distillation loss still sees: samples are off-policy",
            "set top_p to 1 and top_k to 0",
        )
    same = " for samples and loss" if loss_temperature is not None else ""
    return findings or [Finding("OK", "temperature", f"{temperature:g}{same}, no tokens are cut off")]


# -- sampled completions ------------------------------------------------------------------------------------------


def sample_questions(
    student: Any, questions: Sequence[Question], n: int, grader: Grader | None = None
) -> list[Sampled]:
    """Samples `n` completions per question; a truncated one is incorrect, as in an analysis."""
    from opd_align.backends.probes import Sampled

    requests = [SampleRequest(question, np.empty(0, np.uint32), n) for question in questions]
    rollouts = student.sample(requests)
    samples = []
    for request, keys in zip(requests, student.keys(requests), strict=True):
        own = rollouts.take(np.isin(rollouts.key_R, keys))
        if grader is not None and len(own):
            outcome_R = grader.grade(request.question, own)
            outcome_R = np.where(own.finish_R == Finish.TRUNCATED, Outcome.INCORRECT, outcome_R).astype(np.int8)
            own = replace(own, outcome_R=outcome_R)
        samples.append(Sampled(request.question, own))
    if not len(rollouts):
        reason = rollouts.failures[0].reason if rollouts.failures else "the student returned no completions"
        raise OpdAlignError(f"none of {n * len(questions)} completions succeeded: {reason}")
    return samples


def check_truncation(samples: Sequence[Sampled], max_tokens: int) -> Finding:
    """The share of completions that reach the maximum length."""
    finish_R = np.concatenate([each.rollouts.finish_R for each in samples])
    truncated = int((finish_R == Finish.TRUNCATED).sum())
    share = truncated / len(finish_R)
    found = f"{truncated} of {len(finish_R)} completions are truncated at {max_tokens:,} tokens"
    if share <= MAX_TRUNCATED:
        return Finding("OK", "truncation", found)
    return Finding(
        "FAIL" if share > MAX_TRUNCATED_FAIL else "WARN", "truncation", f"{found}; they count as incorrect",
        "raise the maximum completion length, or switch thinking off",
    )  # fmt: skip


def check_pass_rate(samples: Sequence[Sampled]) -> Finding:
    """Whether some completions are correct and some are not: without both, nothing can be learned or measured."""
    outcomes = [each.rollouts.outcome_R for each in samples]
    outcome_R = np.concatenate(outcomes)
    unknown = int((outcome_R == Outcome.UNKNOWN).sum())
    known = len(outcome_R) - unknown
    if not known:
        return Finding(
            "FAIL", "pass rate", f"the verifier has no verdict on any of {unknown} completions",
            "check the reference answers and what the verifier needs",
        )  # fmt: skip
    correct = int((outcome_R == Outcome.CORRECT).sum())
    mixed = sum((own == Outcome.CORRECT).any() and (own == Outcome.INCORRECT).any() for own in outcomes)
    found = f"{correct} of {known} completions are correct, {mixed} of {len(samples)} questions have both outcomes"
    if correct in (0, known):
        words = ("incorrect", "harder") if correct else ("correct", "easier")
        return Finding(
            "FAIL", "pass rate", f"{found}: without {words[0]} ones no token can be called better than another",
            f"choose {words[1]} questions (opd-align screen finds them)"
            + ("" if correct else ", and check the verifier and the prompt"),
        )  # fmt: skip
    if unknown:
        return Finding(
            "WARN", "pass rate", f"{found}; {unknown} more have no verdict",
            "check the reference answers and what the verifier needs",
        )  # fmt: skip
    if not mixed:
        return Finding(
            "WARN", "pass rate", found, "choose questions of medium difficulty (opd-align screen finds them)"
        )
    return Finding("OK", "pass rate", found)


def check_determinism(student: Any, samples: Sequence[Sampled]) -> Finding:
    """Whether the same request gives the same completions again."""
    first = next(each for each in samples if len(each.rollouts))
    n = len(first.rollouts)
    again = student.sample([SampleRequest(first.question, np.empty(0, np.uint32), n)])
    completions = {int(key): first.rollouts.completion(row).tolist() for row, key in enumerate(first.rollouts.key_R)}
    same = sum(completions.get(int(key)) == again.completion(row).tolist() for row, key in enumerate(again.key_R))
    if same == n:
        return Finding("OK", "determinism", f"{n} completions are the same when sampled again with the same seed")
    return Finding(
        "WARN", "determinism",
        f"{n - same} of {n} completions differ when sampled again with the same seed: a repeated run will differ too",
        "keep the rollouts of the first run (--reuse); for a vLLM server, VLLM_BATCH_INVARIANT=1 may help",
    )  # fmt: skip


def check_sampling_gap(gap: Gap) -> Finding:
    """Whether the student samples from the distribution that it scores with."""
    found = (
        f"sampled tokens are {abs(gap.mean):.3f} nats {'more' if gap.mean > 0 else 'less'} surprising than the scored "
        f"distribution expects ({gap.tokens:,} tokens, z = {gap.z:.1f})"
    )
    if abs(gap.z) <= SAMPLING_Z:
        return Finding("OK", "sampling", found)
    return Finding(
        "FAIL" if abs(gap.mean) > MAX_SAMPLING_GAP else "WARN", "sampling",
        f"{found}: samples and scores are not of the same distribution",
        "check that both have the same weights, adapter, temperature, prompt and precision",
    )  # fmt: skip


# -- teachers -----------------------------------------------------------------------------------------------------


def check_server_gap(name: str, gap: Gap) -> Finding:
    """Whether server and local weights give the same log-probabilities."""
    found = (
        f"{name}: log-probabilities of server and local weights differ by {gap.mean:.3g} nats on average, at most "
        f"{gap.largest:.3g} ({gap.tokens:,} tokens)"
    )
    if gap.mean <= MAX_SERVER_GAP:
        return Finding("OK", "server log-probs", found)
    if gap.mean <= MAX_SERVER_GAP_FAIL:
        return Finding("WARN", "server log-probs", found, "use the same dtype and quantization for both")
    return Finding(
        "FAIL", "server log-probs", found,
        "check that the server serves the same weights, adapter and revision",
    )  # fmt: skip


def check_teacher_reading(student: Any, teacher: Any, samples: Sequence[Sampled]) -> Finding:
    """Whether a teacher finds the student's completions plausible: their text, first tokens and ends."""
    from opd_align.backends.probes import last_tokens

    ratios, firsts, ends = [], [], []
    for each in samples:
        rollouts = each.rollouts.take(each.rollouts.length_R > 0)
        log_t = student.token_log_probs(each.question, rollouts, teacher)
        ratios.append(log_t - student.token_log_probs(each.question, rollouts, None))
        firsts.append(log_t[rollouts.offsets[:-1]])
        ends.append(last_tokens(log_t, rollouts)[rollouts.finish_R == Finish.STOPPED])
    ratio, first, end = (float(f(np.concatenate(v))) if sum(map(len, v)) else 0.0 for f, v in (
        (np.mean, ratios), (np.median, firsts), (np.median, ends),
    ))  # fmt: skip
    found = f"{teacher.name}: {np.exp(first):.2g} for the first token of a completion, {np.exp(end):.2g} for its end " \
        f"(medians), log-ratio {ratio:.2f} nats per token"  # fmt: skip
    if not any(values.any() for values in ratios):
        return Finding(
            "WARN", "teacher", f"{teacher.name} gives exactly the student's probabilities: there is nothing to distill",
            "use another model, or a context",
        )  # fmt: skip
    if end < MIN_LOG_PROB:
        return Finding(
            "WARN", "teacher", f"{found}: it does not expect responses to end where and how the student ends them",
            "check that both use the same end token and form of response",
        )  # fmt: skip
    if first < MIN_LOG_PROB:
        return Finding(
            "WARN", "teacher", f"{found}: it does not expect responses to begin as the student's do",
            "check chat template, thinking and prompt of the teacher (opd-align show-prompt)",
        )  # fmt: skip
    if ratio < MIN_LOG_RATIO:
        return Finding(
            "WARN", "teacher", f"{found}: the student's text is very unlikely for it",
            "check vocabulary and prompt of the teacher; the loss will mostly correct style",
        )  # fmt: skip
    return Finding("OK", "teacher", found)


def check_top_k(name: str, bias: TopKBias) -> Finding:
    """Whether the tokens that a server returns are enough."""
    change = (bias.kl - bias.kl_of_half) / bias.kl if bias.kl > 0 else 0.0
    found = (
        f"{name}: the {bias.top} known tokens have {bias.mass:.1%} of the mass; KL {bias.kl:.3g}, "
        f"{max(change, 0.0):.1%} of which is lost with half as many"
    )
    if bias.mass >= MIN_TOP_K_MASS and change <= MAX_TOP_K_BIAS:
        return Finding("OK", "top-k mass", found)
    return Finding(
        "WARN", "top-k mass", f"{found}: divergences are too low, and updates lack the tail",
        "start the server with a larger --max-logprobs, or load the teacher here",
    )  # fmt: skip


def check_precision(name: str, dtype: str, cosine: float | None) -> Finding:
    """Whether the update in the models' precision is that in float32; `cosine` None: it is float32."""
    if cosine is None:
        return Finding("OK", "precision", f"{name}: student and teacher are in {dtype}")
    found = f"{name}: the update in {dtype} has a cosine of {cosine:.3f} with that in float32 (one completion)"
    if cosine >= MIN_COSINE:
        return Finding("OK", "precision", found)
    return Finding(
        "FAIL" if cosine < MIN_COSINE_FAIL else "WARN", "precision", f"{found}: rounding is part of the signal",
        "use float32 for student and teacher, or a teacher that differs more from the student",
    )  # fmt: skip


def check_padding(name: str, rows: int, n_tokens: int, mass: float) -> Finding:
    """Whether the output layer has a row for each token, and unused rows have no probability."""
    if rows < n_tokens:
        return Finding(
            "FAIL", "vocabulary", f"{name}: {rows:,} rows in the output layer, but the tokenizer has {n_tokens:,} "
            "tokens", "resize the embeddings (model.resize_token_embeddings), or use the model's own tokenizer",
        )  # fmt: skip
    found = f"{name}: {n_tokens:,} tokens, {rows - n_tokens:,} unused rows with a probability of {mass:.2g}"
    if mass > MAX_PADDING_MASS:
        return Finding(
            "WARN", "vocabulary", f"{found}: a loss over all rows moves mass between tokens that do not exist",
            "use the model's own tokenizer, or set the logits of unused rows to -inf",
        )  # fmt: skip
    return Finding("OK", "vocabulary", found)


def check_demonstrations(
    missing: Mapping[str, Mapping[str, str]], questions: Sequence[Question], trials: int, max_trials: int
) -> Finding:
    """Whether the contexts' demonstrations were found; `missing`: question → context → what is missing."""
    lacking = [question.id for question in questions if question.id in missing]
    found = f"complete for {len(questions) - len(lacking)} of {len(questions)} questions in at most {trials} trials"
    if not lacking:
        return Finding("OK", "demonstrations", found)
    context, reason = next(iter(missing[lacking[0]].items()))
    more = "" if trials == max_trials else f" (a run tries {max_trials})"
    return Finding(
        "FAIL" if len(lacking) == len(questions) and trials == max_trials else "WARN", "demonstrations",
        f"{found}{more}; {lacking[0]!r} lacks for {context}: {reason}",
        "choose easier questions, raise demonstrations.trials, or let another model write them (source)",
    )  # fmt: skip


def check_prompt_length(too_long: Mapping[str, str], perhaps: Mapping[str, str], n_questions: int) -> Finding:
    """Whether prompts and completions fit the context of every model.

    Args:
        too_long: Question → reason, where they do not fit.
        perhaps: Question → reason, where a teacher cannot read the longest completions.
        n_questions: Number of questions.
    """
    if not too_long and not perhaps:
        return Finding("OK", "context length", f"prompts and completions of {n_questions} questions fit")
    if not too_long:
        name, reason = next(iter(perhaps.items()))
        return Finding(
            "WARN", "context length",
            f"the longest completions of {len(perhaps)} of {n_questions} questions would not fit; {name!r}: {reason}",
            "a teacher is left out on questions whose paths are too long for it; lower the maximum completion length, "
            "or use shorter demonstrations (demonstrations.max_tokens)",
        )  # fmt: skip
    name, reason = next(iter(too_long.items()))
    return Finding(
        "FAIL" if len(too_long) == n_questions else "WARN", "context length",
        f"{len(too_long)} of {n_questions} questions do not fit; {name!r}: {reason}",
        "lower the maximum completion length, or use shorter prompts",
    )  # fmt: skip
