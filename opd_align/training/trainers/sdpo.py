"""A gate for `SDPOTrainer`, as a callback: self-distillation on incorrect rollouts only.

SDPO shows its student a successful solution and distills the student's resulting predictions into its other attempts.
Before each batch it lets callbacks change which rollouts are distilled (`self_distillation_mask`); this gate removes
the correct ones. SDPO averages within each rollout and then over all of them, masked or not: this is the denominator
"keep", per sequence. A weight between 0 and 1 would cancel out, so there is none. A truncated rollout is incorrect for
the gate, as for the other trainers; its reward is the verifier's value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from opd_align.tasks import Task
from opd_align.training import trl_compat
from opd_align.training.gates import GateBatch, IncorrectOnly, Unknown, compute_weights
from opd_align.training.rewards import CORRECT_FROM, TIMEOUT_S, RewardVerifier, Verifier
from opd_align.types import OpdAlignError, Outcome


class SDPOGate(TrainerCallback):
    """Removes correct rollouts from SDPO's self-distillation.

    Pass `gate.reward` to the trainer's `reward_funcs`, then call `gate.attach(trainer)`, which also adds the callback:
    a gate that is not attached raises an error in `trainer.train()`.

    Args:
        verifier: A reward function with TRL's signature, synchronous or asynchronous, or a `Task`.
        unknown: Whether to "keep" or "drop" rollouts whose outcome is unknown.
        correct_from: Smallest value of the verifier that means correct.
        verifier_timeout_s: Time limit of one call of the verifier, in seconds.
    """

    def __init__(
        self,
        verifier: Verifier | Task,
        *,
        unknown: Unknown,
        correct_from: float = CORRECT_FROM,
        verifier_timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.gate = IncorrectOnly(verifier, unknown=unknown)
        self.verifier = RewardVerifier(verifier, correct_from=correct_from, timeout_s=verifier_timeout_s)
        self._reward = self.verifier.as_reward()
        self._outcomes: list[Outcome] = []
        self._trainer: Any = None
        self._gated_mask_B: Tensor | None = None
        self._applied = False
        self._failures_logged = 0

    def attach(self, trainer: Any) -> SDPOGate:
        """Applies the gate to this trainer."""
        if self.reward not in getattr(trainer, "reward_funcs", ()):
            raise OpdAlignError("the gate gets outcomes as rewards: pass gate.reward to SDPOTrainer's reward_funcs")
        if not isinstance(trainer, trl_compat.SDPOTrainer):
            raise OpdAlignError(f"SDPOGate is a gate for SDPOTrainer, not for {type(trainer).__name__}")
        trl_compat.check_trainer(type(trainer), ("_dispatch_self_distillation_callback",))
        trl_compat.check_events(type(trainer))
        trl_compat.check_attributes(trainer)
        self._trainer = trainer
        if self not in trainer.callback_handler.callbacks:
            trainer.add_callback(self)
        return self

    def reward(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """The verifier as a reward function: its values, `None` where they are unknown."""
        self._check_attached()
        if self._trainer.model.training:
            self._applied = False  # until the batch of this generation is complete
        values = self._reward(prompts, completions, **columns)
        truncated = self._truncated(columns.get("completion_ids"), len(values))
        outcomes = zip(self.verifier.latest, truncated, strict=True)
        self._outcomes = [Outcome.INCORRECT if cut else outcome for outcome, cut in outcomes]
        return values

    def _truncated(self, completion_ids: Sequence[Sequence[int]] | None, n: int) -> list[bool]:
        if completion_ids is None:
            return [False] * n
        end_tokens = trl_compat.completion_ends(self._trainer)
        return [not len(ids) or ids[-1] not in end_tokens for ids in completion_ids]

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self._check_attached()

    def on_teacher_context_built(self, **arguments: Any) -> None:
        """SDPO's event: rewards are known, and the mask is about to be used."""
        expected = trl_compat.event_arguments("on_teacher_context_built", arguments)
        model, completion_mask, self_distillation_mask = expected
        if not model.training:
            return
        outcome_B = torch.tensor([int(outcome) for outcome in self._outcomes], device=completion_mask.device)
        batch = GateBatch(completion_mask, torch.ones_like(completion_mask[:, :1]).bool(), outcome_B)
        distilled_B = self_distillation_mask > 0
        self_distillation_mask *= compute_weights(self.gate, batch)[:, 0]
        self._gated_mask_B = self_distillation_mask.clone()
        self._log(outcome_B, distilled_B, self_distillation_mask > 0)

    def on_self_distillation_batch_prepared(self, **arguments: Any) -> None:
        """SDPO's event: the batch is complete. The mask was changed in place, so it must be in the batch."""
        expected = trl_compat.event_arguments("on_self_distillation_batch_prepared", arguments)
        model, self_distillation_mask = expected
        if model.training:
            gated_B, self._gated_mask_B = self._gated_mask_B, None
            self._applied = gated_B is not None and not bool((self_distillation_mask > gated_B).any())
            self._check_applied()

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self._check_applied()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self._check_applied()

    def _check_attached(self) -> None:
        if self._trainer is None:
            raise OpdAlignError("SDPOGate is not attached: call gate.attach(trainer) before trainer.train()")

    def _check_applied(self) -> None:
        if not self._applied:
            raise OpdAlignError(f"SDPO's batch was built without the gate: {trl_compat.untested()}")

    def _log(self, outcome_B: Tensor, distilled_B: Tensor, kept_B: Tensor) -> None:
        failures, self._failures_logged = self.verifier.failures - self._failures_logged, self.verifier.failures
        masks = [distilled_B, kept_B, outcome_B == Outcome.CORRECT, outcome_B == Outcome.UNKNOWN]
        counts = [len(outcome_B), *(int(mask_B.sum()) for mask_B in masks), failures]
        local = torch.tensor(counts, dtype=torch.float32, device=outcome_B.device)
        rollouts, distilled, kept, correct, unknown, failed = self._trainer.accelerator.reduce(local, "sum").tolist()
        values = {"correct": correct / rollouts, "unknown": unknown / rollouts, "verifier_failures": failed}
        if distilled:  # of the rollouts for which SDPO has a successful solution to show
            values["sequences_kept"] = kept / distilled
        for name, value in values.items():
            trl_compat.train_metrics(self._trainer)[f"gate/{name}"].append(value)
