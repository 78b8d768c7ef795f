"""What a run reports about its own scores: in which precision they are, and how much another one would change them.

Both numbers are measured once per process, on the first path that is scored and the first request that is sampled, and
are shown next to the result; nothing is computed with them. Intervals and noise ceilings do not contain this noise.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from opd_align.types import Floats, OpdAlignError, Question, Rollouts

logger = logging.getLogger(__name__)

SCORING_REPORT = "scoring report"
"""The key of the report that all scorers of a study fill."""
MAX_MEAN_GAP = 0.1
"""In nats per token; rounding to bfloat16 changes log-probabilities by a few hundredths, more has other causes."""


@dataclass(frozen=True)
class ScoringNoise:
    """The update towards one teacher in two precisions, along one path.

    Args:
        stored: The dtype of the weights, such as `bfloat16`.
        used: The precision of the scores: `float32`, `head` or `native`.
        cosine_stored: Cosine of the update in the precision of the weights with that in float32.
        cosine_used: Cosine of the update in the precision of the scores with that in float32.
    """

    stored: str
    used: str
    cosine_stored: float
    cosine_used: float


@dataclass
class ScoringReport:
    """Filled by the student that samples and scores; shared by its copies.

    Args:
        noise: By teacher. `None`: nothing was scored yet. Weights in float32 have no entry.
        sampler_gap: Mean and largest absolute difference, in nats, between the sampler's and the scorer's
            log-probabilities of sampled tokens, and the number of tokens. `None`: not measured.
    """

    noise: Mapping[str, ScoringNoise] | None = None
    sampler_gap: tuple[float, float, int] | None = None
    _failed: bool = field(default=False, repr=False)

    def measure_noise(self, student: Any, teachers: Sequence[Any], completion: Any, temperature: float) -> None:
        """Compares precisions along a completion, for teachers that are local models with half-precision weights."""
        from opd_align.backends import probes
        from opd_align.backends.precision import scoring_precision, stored_dtype

        found = {}
        for teacher in teachers:
            dtypes = sorted({stored_dtype(each.model) for each in (student, teacher)})
            if dtypes == ["float32"]:
                continue
            stored = [replace(each, precision="native") for each in (student, teacher)]
            used = sorted({scoring_precision(each.model, each.precision) for each in (student, teacher)})
            try:
                cosine_stored = probes.update_cosine(stored[0], stored[1], completion, temperature=temperature)
                cosine = 1.0
                if used != ["float32"]:
                    cosine = probes.update_cosine(student, teacher, completion, temperature=temperature)
            except OpdAlignError as error:  # no update, or weights that float32 cannot represent
                logger.info("The scoring noise of %s was not measured: %s", teacher.name, error)
                continue
            found[teacher.name] = ScoringNoise(" and ".join(dtypes), " and ".join(used), cosine_stored, cosine)
            logger.info(
                "%s is scored in %s; in %s the update would have a cosine of %.3f with that in float32 (one path)",
                teacher.name, " and ".join(used), " and ".join(dtypes), cosine_stored,
            )  # fmt: skip
        self.noise = found

    def wants_sampler_gap(self) -> bool:
        """Whether the next sampled request should be compared."""
        return self.sampler_gap is None and not self._failed

    def measure_sampler_gap(
        self, scorer: Any, question: Question, rollouts: Rollouts, sampled: Floats, engine: str
    ) -> None:
        """Compares an engine's log-probabilities of what it sampled, at temperature 1, with the scorer's."""
        plain = replace(scorer, sampling=replace(scorer.sampling, temperature=1.0, top_p=1.0, top_k=0))
        scored = np.asarray(plain.token_log_probs(question, rollouts, None))
        gap = np.abs(np.asarray(sampled) - scored)[_new_tokens(rollouts)]
        gap = gap[np.isfinite(gap)]
        if not len(gap):
            return
        self.sampler_gap = float(gap.mean()), float(gap.max()), len(gap)
        logger.log(
            logging.WARNING if gap.mean() > MAX_MEAN_GAP else logging.INFO,
            "Log-probabilities of %d sampled tokens: %s and the scorer differ by %.4f nats on average, %.3f at most%s",
            len(gap), engine, gap.mean(), gap.max(),
            "; do both have the same weights?" if gap.mean() > MAX_MEAN_GAP else "",
        )  # fmt: skip

    def skip_sampler_gap(self, reason: object) -> None:
        """Gives up on the comparison: it is information, never worth a run."""
        self._failed = True
        logger.info("The sampler's log-probabilities are not compared with the scorer's: %s", reason)

    def facts(self) -> dict[str, str]:
        """The measurements in words, by label; only those that were made."""
        facts = {}
        if self.noise:
            parts = [
                f"{name}: scored in {_words(each.used)} (cosine {each.cosine_used:.3f} with float32); in {each.stored} "
                f"{each.cosine_stored:.3f}"
                for name, each in self.noise.items()
            ]
            facts["scoring noise"] = f"update along one path. {'; '.join(parts)}"
        if self.sampler_gap is not None:
            mean, largest, tokens = self.sampler_gap
            facts["sampler and scorer"] = (
                f"log-probabilities differ by {mean:.4f} nats on average, {largest:.3f} at most ({tokens:,} tokens)"
            )
        return facts


def _words(precision: str) -> str:
    return precision.replace("head", "the weights' precision with a float32 output layer")


def _new_tokens(rollouts: Rollouts) -> Any:
    """Which of the flat tokens were sampled, not forced."""
    position = np.arange(len(rollouts.tokens)) - np.repeat(rollouts.offsets[:-1], rollouts.length_R)
    return position >= np.repeat(rollouts.launch_R, rollouts.length_R)
