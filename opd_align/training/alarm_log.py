"""The alarm during a training: its numbers for each evaluation, and an alert when its level gets worse.

The readings come from `history.jsonl`, so nothing else has to be stored: a resumed training, or a watcher that was
started again, continues where the history ends, and a step that is repeated replaces what came after it. The callback
and `opd-align watch` both call `alarm_after`. Nothing here raises because of a history or a tracker.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any

from opd_align.core.alarm import LEVELS, Alarm, Level, Reading, alarms
from opd_align.core.intervals import NORMAL
from opd_align.core.metric_registry import parse_key, teacher_metric
from opd_align.report.history import HISTORY, read_lines
from opd_align.types import REWARD, OpdAlignError

logger = logging.getLogger(__name__)

MEAN, HALF_WIDTH = "alignment/weighted", "alignment/weighted_half_width"
"""What the alarm reads: the alignment that predicts what training gains."""


@dataclass(frozen=True)
class Alert:
    """What someone should be told once.

    Args:
        variant: The `<teacher>/<objective>`.
        level: Its new level.
        title: In one line.
        text: What was found, and what to do.
    """

    variant: str
    level: Level
    title: str
    text: str


def alarm_after(
    folder: Path, step: int, numbers: Mapping[str, float], *, distilled: Collection[str] | None = None
) -> tuple[dict[str, float], list[Alert]]:
    """The alarm's numbers by key for an evaluation that is not in the history yet, and the alerts that it causes.

    Args:
        folder: The folder `opd_align` of the training.
        step: The step that was evaluated.
        numbers: Its metrics by key; empty for an evaluation that failed.
        distilled: Names of the teachers that the training learns from: only they cause alerts. `None`: all.
    """
    current = readings_by_variant([(step, {"metrics": numbers})])
    try:
        lines, _ = read_lines(folder / HISTORY) if current else ([], 0)
    except OpdAlignError as error:  # the disk is not reachable: the alarm of this evaluation alone
        logger.debug("The alarm does not use earlier evaluations: %s", error)
        lines = []
    before = readings_by_variant(_replaced(lines, step))
    found: dict[str, float] = {}
    alerts: list[Alert] = []
    for variant, (reading,) in current.items():
        states = alarms([*before.get(variant, []), reading])
        teacher, _, objective = variant.rpartition("/")
        latest = states[-1]
        values = {
            "p_helps": latest.p_helps,
            "level": LEVELS[latest.level],
            "alignment": latest.mean,
            "low": latest.low,
            "high": latest.high,
        }
        found |= {teacher_metric(f"alarm/{stem}").key(teacher, objective): each for stem, each in values.items()}
        previous = states[-2].level if len(states) > 1 else "unsure"
        if LEVELS[latest.level] < min(LEVELS[previous], 0) and (distilled is None or teacher in distilled):
            alerts.append(_alert(variant, states))
    return found, alerts


def readings_by_variant(lines: Iterable[tuple[int, Mapping[str, Any]]]) -> dict[str, list[Reading]]:
    """The readings of each `<teacher>/<objective>` in lines of a history; rewards have no alarm."""
    found: dict[str, list[Reading]] = {}
    for step, line in lines:
        metrics = line.get("metrics")
        values: dict[str, dict[str, float]] = {}
        for key, value in (metrics if isinstance(metrics, Mapping) else {}).items():
            parsed = parse_key(key) if key.endswith((MEAN, HALF_WIDTH)) else None
            if parsed is not None and parsed.variant is not None and not parsed.variant.startswith(f"{REWARD}/"):
                known = isinstance(value, int | float) and not isinstance(value, bool)
                values.setdefault(parsed.variant, {})[parsed.metric.stem] = float(value) if known else nan
        for variant, of in values.items():
            # Half-widths are of t intervals: with few questions, a reading has the larger error that it deserves.
            reading = Reading(step, of.get(MEAN, nan), of.get(HALF_WIDTH, nan) / NORMAL)
            found.setdefault(variant, []).append(reading)
    return found


def send_alert(tracker: Any, alert: Alert) -> None:
    """Sends an alert on the current run; `tracker` is the imported module `wandb` or `trackio`."""
    level = tracker.AlertLevel.ERROR if alert.level == "harms" else tracker.AlertLevel.WARN
    tracker.alert(title=alert.title, text=alert.text, level=level)


def _replaced(lines: Iterable[tuple[int, Mapping[str, Any]]], next_step: int) -> list[tuple[int, Mapping[str, Any]]]:
    """The lines that still hold before an evaluation of `next_step`: a line replaces those of its step and later."""
    kept: list[tuple[int, Mapping[str, Any]]] = []
    for step, line in [*lines, (next_step, {})]:
        while kept and kept[-1][0] >= step:
            kept.pop()
        kept.append((step, line))
    return kept[:-1]


def _alert(variant: str, states: list[Alarm]) -> Alert:
    latest = states[-1]
    helped = max((state.step for state in states if state.level == "helps"), default=None)
    if latest.level == "fades":
        title = f"{variant} no longer helps"
        advice = (
            "The student may have learned what this teacher can offer: compare the student's accuracy with that at "
            f"step {helped:,}, then stop, lower the weight of the distillation loss, or change the teacher."
        )
    elif helped is not None:
        title = f"{variant} harms"
        advice = (
            f"Go back to a checkpoint of about step {helped:,}, the last at which it helped, and stop distilling from "
            "this teacher, change it, or gate the loss."
        )
    else:
        title = f"{variant} harms"
        advice = "Do not distill from this teacher with this loss: try another teacher, context or loss, or a gate."
    measured = (
        f"At step {latest.step:,} its update helps with probability {latest.p_helps:.2f} (alignment "
        f"{latest.mean:+.2f}, 95 % interval {latest.low:+.2f} to {latest.high:+.2f}, from all evaluations so far)."
    )
    return Alert(variant, latest.level, title, f"{measured} {advice}")
