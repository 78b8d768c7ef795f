"""Where the evaluations of a training in two processes are made to fail: a stage and a rank for each step."""

from __future__ import annotations

SYNC = ("sync first", "sync middle", "sync last")
"""While weights are sent to vLLM: before the first of them, one in the middle, and the last."""

# Demonstrations are kept once they are written: their stages come first.
ON_ANY_RANK = (
    "demonstrations", "state", *SYNC, "wake", "memory", "gather", "loading", "questions", "between stages", "sampling",
    "scoring", "grading", "sleep", "verifier", "metrics", "report",
)  # fmt: skip
ON_RANK_0 = ("saving demonstrations", "directory", "finishing")

FAULTS = [
    *((stage, rank) for stage in ON_ANY_RANK[:1] for rank in (0, 1)),
    *((stage, 0) for stage in ON_RANK_0),
    *((stage, rank) for stage in ON_ANY_RANK[1:] for rank in (0, 1)),
]
