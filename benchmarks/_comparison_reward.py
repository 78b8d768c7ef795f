"""The trainers of `comparison.py` with rewards: GRPO alone, or on correct rollouts with a teacher on incorrect ones.

Settings are those of the recipe `grpo_distill_on_failures`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from _comparison_regimes import ARITHMETIC
from trl import GRPOConfig, GRPOTrainer

from opd_align.training import GatedGRPOTrainer, IncorrectOnly


def reward_trainer(arm: str, teacher: Any, generations: int, options: Mapping[str, Any], **given: Any) -> GRPOTrainer:
    """The trainer of an arm; the schedule of `handover` is added to it later.

    Args:
        arm: One of `REWARDED`.
        teacher: The teacher; `grpo` has none.
        generations: Rollouts of each question.
        options: Options that the configurations of all trainers share.
        **given: Student, tokenizer and data set.
    """
    verifier = ARITHMETIC.verifier
    given |= {"reward_funcs": [verifier], "args": GRPOConfig(**options, beta=0.0, num_generations=generations)}
    # Not a gated trainer with a weight of 0: with `IncorrectOnly` that has no advantage on incorrect rollouts.
    if arm == "grpo":
        return GRPOTrainer(**given)
    gate = IncorrectOnly(verifier, unknown="drop")
    return GatedGRPOTrainer(**given, teacher_model=teacher, gate=gate, denominator="keep")
