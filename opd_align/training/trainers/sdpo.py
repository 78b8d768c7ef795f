"""SDPO through a gate, by a callback: self-distillation on the rollouts that failed.

SDPO shows its student a solution that worked and distils what the student then thinks of its other attempts. It asks
callbacks before each batch which rollouts to distil (`self_distillation_mask`); this gate takes out those that were
right already. SDPO averages within each rollout and then over all of them, masked or not: the denominator is `keep`,
by sequence, and a weight between 0 and 1 would cancel out, so there is none. A rollout that does not end is incorrect
for the gate, as for the others; its reward is what the verifier says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from opd_align.training.gates import GateBatch, IncorrectOnly, Unknown, Verifier, weigh
from opd_align.training.rewards import Verifying
from opd_align.types import OpdAlignError, Outcome


class SDPOGate(TrainerCallback):
    """Give `gate.reward` to the trainer's `reward_funcs`, then say `gate.attach(trainer)`."""

    def __init__(self, verifier: Verifier, *, unknown: Unknown, verifier_timeout_s: float = 60.0) -> None:
        self.gate = IncorrectOnly(verifier, unknown=unknown)
        self.verifying = Verifying(verifier, timeout_s=verifier_timeout_s)
        self._asked = self.verifying.as_reward()
        self._outcomes: list[Outcome] = []
        self._trainer: Any = None
        self._failures_seen = 0

    def attach(self, trainer: Any) -> SDPOGate:
        """From now on the trainer's rollouts pass the gate."""
        if self.reward not in getattr(trainer, "reward_funcs", ()):
            raise OpdAlignError("the gate hears outcomes as a reward: give gate.reward to SDPOTrainer's reward_funcs")
        self._trainer = trainer
        trainer.add_callback(self)
        return self

    def reward(self, prompts: Sequence[Any], completions: Sequence[Any], **given: Any) -> list[float | None]:
        """The verifier as a reward function: 1, 0, or `None` where it could not tell."""
        rewards = self._asked(prompts, completions, **given)
        endless = self._endless(given.get("completion_ids"), len(rewards))
        said = zip(self.verifying.latest, endless, strict=True)
        self._outcomes = [Outcome.INCORRECT if cut else outcome for outcome, cut in said]
        return rewards

    def _endless(self, completion_ids: Sequence[Sequence[int]] | None, n: int) -> list[bool]:
        if self._trainer is None or completion_ids is None:
            return [False] * n
        ends = (*self._trainer.eos_token_ids, self._trainer._tokenizer.pad_token_id)  # TRL's own rule
        return [not len(ids) or ids[-1] not in ends for ids in completion_ids]

    def on_teacher_context_built(
        self, *args: Any, model: Any, completion_mask: Tensor, self_distillation_mask: Tensor, **kwargs: Any
    ) -> None:
        """SDPO's event: rewards are known, and the mask is about to be used."""
        if not model.training:
            return
        outcome_B = torch.tensor([int(outcome) for outcome in self._outcomes], device=completion_mask.device)
        batch = GateBatch(completion_mask, torch.ones_like(completion_mask[:, :1]).bool(), outcome_B)
        taught_B = self_distillation_mask > 0
        self_distillation_mask *= weigh(self.gate, batch)[:, 0]
        self._log(outcome_B, taught_B, self_distillation_mask > 0)

    def _log(self, outcome_B: Tensor, taught_B: Tensor, kept_B: Tensor) -> None:
        failures, self._failures_seen = self.verifying.failures - self._failures_seen, self.verifying.failures
        marks = [taught_B, kept_B, outcome_B == Outcome.CORRECT, outcome_B == Outcome.UNKNOWN]
        counts = [len(outcome_B), *(int(mark.sum()) for mark in marks), failures]
        mine = torch.tensor(counts, dtype=torch.float32, device=outcome_B.device)
        rollouts, taught, kept, correct, unknown, failed = self._trainer.accelerator.reduce(mine, "sum").tolist()
        figures = {"correct": correct / rollouts, "unknown": unknown / rollouts, "verifier_failures": failed}
        if taught:  # of the rollouts that SDPO has a solution to show for
            figures["sequences_kept"] = kept / taught
        for name, value in figures.items():
            self._trainer._metrics["train"][f"gate/{name}"].append(value)
