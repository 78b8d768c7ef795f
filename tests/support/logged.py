"""What trackers get of an evaluation, unknown values included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opd_align.core.metric_registry import parse_key, recorded_metrics


def logged_metrics(analysis: Any, gate_weights: Mapping[tuple[str, str], Any] | None = None) -> dict[str, float]:
    """The metrics of the history that are also logged; NaN is unknown."""
    recorded = recorded_metrics(analysis, gate_weights)
    return {key: value for key, value in recorded.items() if (found := parse_key(key)) and found.metric.logged}
