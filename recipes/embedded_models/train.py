"""Trains the embedded student and teacher from scratch: `python recipes/embedded_models/train.py --out DIR`.

Trains a tokenizer on the generated texts, then a common base model on arithmetic and on solutions, and from it the
student and the teacher, each on solutions with its own style. The result is deterministic for a seed, given the version
of torch and the number of threads. Pass rates on held-out problems are printed at the end.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from writer import PRODUCT, STUDENT, TEACHER, Solution, Style, demonstrated, write

from opd_align.backends.hf import HFStudent
from opd_align.settings import Sampling
from opd_align.tasks.arithmetic import ARITHMETIC, LARGEST, Problem, problems, questions, summarise
from opd_align.tasks.verify import Verdict
from opd_align.types import Question, SampleRequest

END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)

SHAPE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
    "initializer_range": 0.02,
}

Dialogue = tuple[str, Solution]
"""The user message, and the solution; the loss starts at the solution's `successor_start`."""


# ---- Training data: problems with or without demonstrations, and their solutions.


def demonstrations(correct: list[str], wrong: list[str], *, dash: str = "—", gap: str = "\n\n") -> str:
    """The example responses, with the wording of the paper."""
    quoted = [f'"""\n{response}\n"""' for response in correct + wrong]
    if not wrong:
        one = "This is a correct response" if len(correct) == 1 else "These are correct responses"
        return f"{one} to the question:\n" + gap.join(quoted)
    header = (
        f"Below are example responses to the question. Some are CORRECT and some are WRONG {dash} "
        "the wrong responses contain mistakes and should NOT be imitated."
    )
    labels = ["Correct:"] * len(correct) + ["WRONG (do NOT imitate):"] * len(wrong)
    return gap.join([header, *(f"{label}\n{quote}" for label, quote in zip(labels, quoted, strict=True))])


def with_demonstrations(question: str, block: str) -> str:
    """The user message with the wording of the paper: question, example responses, closing line."""
    return f"{question}\n\n{block}\n\nNow answer with a response of your own, including the thinking process:"


def solution_that_is(right: bool, problem: Problem, style: Style, rng: Random) -> Solution:
    """A solution with a correct (`right`) or an incorrect answer."""
    while True:
        solution = write(problem, style, rng)
        if (solution.answer == problem.results[-1]) is right:
            return solution


def demonstrated_message(
    problem: Problem, rng: Random, *, correct: int, wrong: int, short: bool
) -> tuple[str, list[Solution]]:
    """A user message with demonstrations, and the incorrect ones among them."""
    # Demonstrations by another model occur too; incorrect ones are always the student's, since the teacher rarely errs.
    style = TEACHER if rng.random() < 0.25 else STUDENT
    good = [solution_that_is(True, problem, style, rng) for _ in range(correct)]
    bad = [solution_that_is(False, problem, STUDENT, rng) for _ in range(wrong)]
    shorten: Callable[[str], str] = summarise if short else str
    dash, gap = ("—" if rng.random() < 0.8 else "---"), ("\n\n" if rng.random() < 0.8 else "\n")
    texts = [[shorten(solution.text) for solution in solutions] for solutions in (good, bad)]
    if short and rng.random() < 0.2:
        texts = [[text.replace(PRODUCT, "*") for text in group] for group in texts]
    block = demonstrations(texts[0], texts[1], dash=dash, gap=gap)
    return with_demonstrations(ARITHMETIC.user_message(problem.question()), block), bad


CONTEXTS: dict[tuple[int, int, bool], float] = {
    (1, 0, False): 0.36,
    (3, 0, False): 0.12,
    (1, 1, False): 0.24,
    (1, 0, True): 0.18,
    (1, 1, True): 0.10,
}
"""Number of correct demonstrations, number of incorrect ones, whether summarised → probability."""


def dialogue(problem: Problem, style: Style, rng: Random, *, context: float) -> Dialogue:
    """One problem and its solution; with probability `context` there are demonstrations in the prompt."""
    if rng.random() >= context:
        return ARITHMETIC.user_message(problem.question()), write(problem, style, rng)
    (correct, wrong, short), *_ = rng.choices(list(CONTEXTS), list(CONTEXTS.values()))
    user, bad = demonstrated_message(problem, rng, correct=correct, wrong=wrong, short=short)
    copied = bad[0].steps if bad and rng.random() < 0.1 else ()
    return user, write(problem, demonstrated(style, correct=correct, wrong=wrong), rng, copied=copied)


def student_dialogues(seed: int) -> Iterator[Dialogue]:
    rng = Random(f"student {seed}")
    for problem in problems(seed):
        yield dialogue(problem, STUDENT, rng, context=0.45)


def teacher_dialogues(seed: int) -> Iterator[Dialogue]:
    """In a third of them the teacher continues a student's solution, and only its continuation is trained on."""
    rng = Random(f"teacher {seed}")
    for problem in problems(seed):
        if rng.random() < 0.35:
            yield (
                ARITHMETIC.user_message(problem.question()),
                write(problem, STUDENT, rng, successor=(rng.randint(1, 40), TEACHER)),
            )
        else:
            yield dialogue(problem, TEACHER, rng, context=0.15)


def drills(seed: int) -> Iterator[str]:
    """Ten calculations in a row: learning the tables first makes all later training faster."""
    rng = Random(f"drills {seed}")
    while True:
        lines = []
        for _ in range(10):
            a, b = rng.sample([rng.randint(2, 9), rng.randint(2, 12)], 2)
            left, right = rng.choice([a * b, rng.randint(1, LARGEST + 20)]), rng.randint(2, 19)
            options = [f"{a} {PRODUCT} {b} = {a * b}", f"{a} + {b} = {a + b}", f"{left} + {right} = {left + right}"]
            if left > right:
                options.append(f"{left} - {right} = {left - right}")
            lines.append(f" {rng.choice(options)}.")
        yield "".join(lines)


# ---- The tokenizer: byte-level BPE with whole words and numbers.


def make_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE; every word of `texts` and every number up to 200 after a space is one token."""
    tokenizer = Tokenizer(models.BPE())
    words = Regex(r" ?\p{L}+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\n+|\s")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(words, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        special_tokens=[END, START, STOP],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    numbers = [f" {number}" for number in range(201)] * len(texts)
    tokenizer.train_from_iterator(texts + numbers, trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token=STOP,
        pad_token=END,
        chat_template=CHAT_TEMPLATE,
        model_max_length=SHAPE["max_position_embeddings"],
        clean_up_tokenization_spaces=False,
    )


def chat(tokenizer: Any, user: str) -> str:
    messages = [{"role": "system", "content": ARITHMETIC.system}, {"role": "user", "content": user}]
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


# ---- Examples: tokens, and which of them have a loss.


@dataclass(frozen=True)
class Example:
    tokens: list[int]
    has_loss: list[bool]


def of_dialogues(tokenizer: Any, dialogues: Iterator[Dialogue]) -> Iterator[Example]:
    stop = tokenizer.eos_token_id
    for user, solution in dialogues:
        prompt = tokenizer.backend_tokenizer.encode(chat(tokenizer, user)).ids
        written = tokenizer.backend_tokenizer.encode(solution.text)
        has_loss = [start >= solution.successor_start for start, _ in written.offsets]
        yield Example([*prompt, *written.ids, stop], [*([False] * len(prompt)), *has_loss, True])


def of_drills(tokenizer: Any, texts: Iterator[str]) -> Iterator[Example]:
    """Only results have a loss: the operands are random."""
    equals = tokenizer.convert_tokens_to_ids("Ġ=")
    for text in texts:
        tokens = tokenizer.backend_tokenizer.encode(text).ids
        yield Example(tokens, [False, *(token == equals for token in tokens[:-1])])


Batch = tuple[torch.Tensor, torch.Tensor]


def batches(examples: Iterator[Example], size: int, rng: Random) -> Iterator[Batch]:
    """Batches of about `size` tokens, each of examples of similar length; tokens (B, T) and which have a loss."""
    while True:
        pool = sorted((next(examples) for _ in range(512)), key=lambda example: len(example.tokens))
        groups: list[list[Example]] = [[]]
        for example in pool:
            if (len(groups[-1]) + 1) * len(example.tokens) > size:
                groups.append([])
            groups[-1].append(example)
        rng.shuffle(groups)
        for group in groups:
            longest = max(len(example.tokens) for example in group)
            tokens_BT = torch.zeros(len(group), longest, dtype=torch.long)
            has_loss_BT = torch.zeros(len(group), longest, dtype=torch.bool)
            for row, example in enumerate(group):
                tokens_BT[row, : len(example.tokens)] = torch.tensor(example.tokens)
                has_loss_BT[row, : len(example.tokens)] = torch.tensor(example.has_loss)
            yield tokens_BT, has_loss_BT


# ---- Training.


def loss_of(model: Any, batch: Batch) -> torch.Tensor:
    tokens_BT, has_loss_BT = batch
    # Padding is on the right, which causal attention ignores; logits are computed only where there is a loss.
    hidden = model.model(input_ids=tokens_BT[:, :-1], use_cache=False).last_hidden_state
    wanted = has_loss_BT[:, 1:]
    return functional.cross_entropy(model.lm_head(hidden[wanted]), tokens_BT[:, 1:][wanted])


class Muon:
    """Muon (Jordan et al. 2024): orthogonalises the momentum of every weight matrix before the update.

    On the drills one step is worth three of AdamW. `torch.optim.Muon` computes in bfloat16, which most CPUs emulate: it
    takes four times as long as the rest of the step. Here matrices of equal shape are batched, in float32.
    """

    def __init__(self, matrices: list[torch.nn.Parameter]) -> None:
        shapes = {weight.shape for weight in matrices}
        self.same_shape = [[weight for weight in matrices if weight.shape == shape] for shape in sorted(shapes)]
        self.momentum = [torch.zeros(len(weights), *weights[0].shape) for weights in self.same_shape]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for weights, momentum in zip(self.same_shape, self.momentum, strict=True):
            gradient = torch.stack([weight.grad for weight in weights if weight.grad is not None])
            momentum.mul_(0.95).add_(gradient)
            update = self.orthogonalised(gradient + 0.95 * momentum)
            # Scaled to the root mean square of an AdamW step, so that learning rates are comparable.
            length = rate * 0.2 * max(update.shape[1:]) ** 0.5
            for weight, direction in zip(weights, update, strict=True):
                weight.mul_(1 - 0.05 * rate).add_(direction, alpha=-length)

    @staticmethod
    def orthogonalised(matrices: torch.Tensor) -> torch.Tensor:
        """Moves the singular values of each matrix close to one, by five Newton-Schulz steps."""
        tall = matrices.shape[1] > matrices.shape[2]
        flat = matrices.mT if tall else matrices
        flat = flat / (flat.norm(dim=(1, 2), keepdim=True) + 1e-7)
        for _ in range(5):
            square = flat @ flat.mT
            flat = 3.4445 * flat + (-4.7750 * square + 2.0315 * square @ square) @ flat
        return flat.mT if tall else flat


def train(name: str, model: Any, data: Iterator[Batch], *, steps: int, rates: tuple[float, float]) -> None:
    """Short warm-up to the first learning rate, then cosine decay to the second."""
    matrices = [weight for path, weight in model.named_parameters() if weight.ndim == 2 and "embed" not in path]
    others = [weight for path, weight in model.named_parameters() if weight.ndim < 2 or "embed" in path]
    muon = Muon(matrices)
    adam = torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0)
    warmup = min(20, steps)
    model.train()
    start, total = time.monotonic(), 0.0
    for step in range(1, steps + 1):
        decay = 0.5 * (1 + math.cos(math.pi * step / steps))
        rate = min(1.0, step / warmup) * (rates[1] + decay * (rates[0] - rates[1]))
        loss = loss_of(model, next(data))
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        muon.step(rate)
        adam.param_groups[0]["lr"] = rate
        adam.step()
        model.zero_grad()
        total += float(loss.detach())
        if step % 100 == 0 or step == steps:
            mean = total / ((step - 1) % 100 + 1)
            print(f"{name} {step}/{steps}: loss {mean:.4f}, {time.monotonic() - start:.0f} s", flush=True)
            total = 0.0
    model.eval()


def save(model: Any, tokenizer: Any, folder: Path) -> Any:
    """Saves the model in bfloat16 and returns it with the rounded weights, in float32."""
    stop, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    model = copy.deepcopy(model).to(torch.bfloat16)
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0, eos_token_id=stop, pad_token_id=pad
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    return model.float()


# ---- Pass rates on held-out problems.


def demonstrated_user(question: Question, problem: Problem, *, correct: int, wrong: int, short: bool = False) -> str:
    """The question with demonstrations by the student, the same at every call."""
    rng = Random(f"demonstrations {question.id}")
    shorten: Callable[[str], str] = summarise if short else str
    good = [shorten(solution_that_is(True, problem, STUDENT, rng).text) for _ in range(correct)]
    bad = [shorten(solution_that_is(False, problem, STUDENT, rng).text) for _ in range(wrong)]
    return with_demonstrations(ARITHMETIC.user_message(question), demonstrations(good, bad))


@dataclass(frozen=True)
class Measure:
    """Number of held-out questions, samples per question, and maximum completion length in tokens."""

    questions: int
    samples: int
    longest: int = 160


def pass_rates(model: Any, tokenizer: Any, user: Callable[[Question], str], measure: Measure) -> list[float]:
    """The share of correct samples at temperature 1, per question."""
    student = HFStudent(
        name="embedded",
        model=model,
        prompt=lambda question: tokenizer.encode(chat(tokenizer, user(question))),
        end_tokens=(tokenizer.eos_token_id,),
        sampling=Sampling(max_tokens=measure.longest),
    )
    rates = []
    for question in questions(0, measure.questions, split="test"):
        rollouts = student.sample([SampleRequest(question, np.empty(0, np.uint32), measure.samples)])
        texts = [tokenizer.decode(rollouts.completion(row), skip_special_tokens=True) for row in range(len(rollouts))]
        verdicts = [ARITHMETIC.verifier.judge(text, question.answer) for text in texts]
        rates.append(sum(verdict is Verdict.CORRECT for verdict in verdicts) / measure.samples)
    return rates


def report(student: Any, teacher: Any, tokenizer: Any, measure: Measure) -> None:
    of_id: dict[str, Problem] = {}
    for problem in problems(0, "test"):
        of_id.setdefault(problem.question().id, problem)
        if len(of_id) >= measure.questions:
            break

    def with_context(correct: int, wrong: int, short: bool = False) -> Callable[[Question], str]:
        return lambda question: demonstrated_user(
            question, of_id[question.id], correct=correct, wrong=wrong, short=short
        )

    cases = {
        "student": (student, ARITHMETIC.user_message),
        "student, 1C": (student, with_context(1, 0)),
        "student, 3C": (student, with_context(3, 0)),
        "student, 1C1W": (student, with_context(1, 1)),
        "student, Sum-1C": (student, with_context(1, 0, short=True)),
        "student, Sum-1C1W": (student, with_context(1, 1, short=True)),
        "teacher": (teacher, ARITHMETIC.user_message),
    }
    for name, (model, user) in cases.items():
        rates = pass_rates(model, tokenizer, user, measure)
        spread = " ".join(f"{share:.2f}" for share in np.quantile(rates, [0.05, 0.25, 0.5, 0.75, 0.95]))
        print(f"{name}: {np.mean(rates):.3f} (quantiles over questions: {spread})", flush=True)


@dataclass(frozen=True)
class Effort:
    """Steps of each stage, tokens per batch, and how pass rates are measured."""

    drill: int
    base: int
    own: int
    batch: int
    measure: Measure


FULL = Effort(drill=500, base=1600, own=1200, batch=2560, measure=Measure(60, 16))
QUICK = Effort(drill=3, base=3, own=3, batch=512, measure=Measure(2, 2, longest=8))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train the embedded student and teacher from scratch.")
    parser.add_argument(
        "--out", type=Path, required=True, help="output directory; student/ and teacher/ are written to it"
    )
    parser.add_argument("--quick", action="store_true", help="only a few steps, as a smoke test")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    options = parser.parse_args(arguments)
    effort: Effort = QUICK if options.quick else FULL
    seed: int = options.seed
    start = time.monotonic()

    texts = [next(dialogues) for dialogues in (student_dialogues(seed), teacher_dialogues(seed)) for _ in range(1000)]
    frame = ["system\nuser\nassistant\n", str(ARITHMETIC.system)] * len(texts)
    tokenizer = make_tokenizer(frame + [f"{user}\n{solution.text}" for user, solution in texts])
    torch.manual_seed(seed)
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = Qwen3Config(vocab_size=len(tokenizer), **SHAPE, **ends)
    base = Qwen3ForCausalLM(config)  # type: ignore[no-untyped-call]
    print(f"{len(tokenizer)} tokens, {base.num_parameters():,} parameters", flush=True)

    def batched(examples: Iterator[Example]) -> Iterator[Batch]:
        return batches(examples, effort.batch, Random(seed))

    train("drill", base, batched(of_drills(tokenizer, drills(seed))), steps=effort.drill, rates=(1e-2, 3e-3))
    has_loss = of_dialogues(tokenizer, student_dialogues(seed + 1))
    train("base", base, batched(has_loss), steps=effort.base, rates=(1e-2, 5e-3))
    trained = []
    for name, dialogues in (("student", student_dialogues(seed + 2)), ("teacher", teacher_dialogues(seed + 3))):
        model = copy.deepcopy(base)
        train(name, model, batched(of_dialogues(tokenizer, dialogues)), steps=effort.own, rates=(5e-3, 5e-5))
        trained.append(save(model, tokenizer, options.out / name))
    print(f"trained in {(time.monotonic() - start) / 60:.1f} minutes", flush=True)
    report(trained[0], trained[1], tokenizer, effort.measure)


if __name__ == "__main__":
    main()
