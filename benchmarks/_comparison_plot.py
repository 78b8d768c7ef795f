"""The picture of recipes/RESULTS.md: what each arm gains over plain distillation, and the regimes that act."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from _comparison_regimes import CONTROL, GATES, ORACLES, REGIMES

from opd_align.core.intervals import Estimate, interval

INK, GREY, LINES = "#222222", "#8a8a8a", "#e4e4e4"
COLORS = {
    "gate": "#0072b2", "oracle": "#d55e00", "schedule": "#009e73", "control": "#999999",
    "mix": "#d55e00", "A": "#0072b2", "B": "#56b4e9", "equal": "#999999", "ungated": "#222222", "rollback": "#009e73",
    "handover": "#009e73", "grpo_distill": "#222222", "grpo": "#0072b2",
}  # fmt: skip
WIDTH, LEFT, COLUMN, GAP, ROW, TOP = 1030, 180, 250, 30, 17, 64
CURVE_HEIGHT, CURVE_WIDTH = 190, 380

Difference = Callable[[Any, Any, Any], Estimate]


def draw(regimes: Mapping[str, Mapping[str, Any]], difference: Difference, final: Any) -> str:
    """One column of differences for each regime with gates; below, accuracy along the trainings that act."""
    shown = [name for name in ("good", "noisy", "harmful") if "ungated" in regimes.get(name, {})]
    rows = [
        name
        for name in (*GATES, *ORACLES, "stop", "rollback", *(f"{CONTROL}{gate}" for gate in GATES))
        if any(name in regimes[regime] for regime in shown)
    ]
    shapes = [
        _text(LEFT - 8, TOP + ROW * n + 4, name.replace("_", " "), "end", _color(name)) for n, name in enumerate(rows)
    ]
    for number, regime in enumerate(shown):
        arms = regimes[regime]
        gaps = {name: difference(arms[name], arms["ungated"], final) for name in rows if name in arms}
        shapes += _dots(LEFT + number * (COLUMN + GAP), REGIMES[regime].title, gaps, rows)
    bottom = TOP + ROW * len(rows) + 76
    curves = {
        "ruin": ("ungated", "rollback"),
        "mixture": ("mix", "A", "B", "equal"),
        "reward": ("handover", "grpo_distill", "grpo"),
    }
    left = LEFT - 120
    for regime, names in curves.items():
        arms = {name: regimes[regime][name] for name in names if name in regimes.get(regime, {})}
        if arms:
            if left + CURVE_WIDTH > WIDTH:
                left, bottom = LEFT - 120, bottom + CURVE_HEIGHT + 90
            shapes += _curves(left, bottom, REGIMES[regime].title, arms)
            left += CURVE_WIDTH + 90
    height = bottom + CURVE_HEIGHT + 60
    style = f'font-family="system-ui, sans-serif" font-size="12" fill="{INK}"'
    body = "\n".join([f'<rect width="{WIDTH}" height="{height}" fill="white"/>', *shapes])
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {style}>\n{body}\n</svg>\n'


def _color(name: str) -> str:
    if name.startswith(CONTROL):
        return COLORS["control"]
    if name in ORACLES:
        return COLORS["oracle"]
    return COLORS["gate"] if name in GATES else COLORS["schedule"]


def _text(x: float, y: float, words: str, anchor: str = "start", fill: str = INK, extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}"{extra}>{words}</text>'


def _dots(left: float, title: str, gaps: Mapping[str, Estimate], rows: list[str]) -> list[str]:
    ends = [(gap.mean - half, gap.mean + half) for gap in gaps.values() for half in [_half(gap)]]
    low, high = min([-0.05, *(end[0] for end in ends)]), max([0.05, *(end[1] for end in ends)])
    bottom = TOP + ROW * len(rows) - 4

    def place(value: float) -> float:
        return left + (value - low) / (high - low) * COLUMN

    shapes = [_text(left, TOP - 34, title, extra=' font-weight="600"')]
    shapes.append(_text(left, TOP - 18, "accuracy at the end − plain distillation", fill=GREY))
    for value in ticks(low, high):
        line = INK if abs(value) < 1e-9 else LINES
        shapes.append(f'<path d="M{place(value):.1f} {TOP - 10}V{bottom}" stroke="{line}"/>')
        shapes.append(_text(place(value), bottom + 15, f"{value:+.2f}" if value else "0", "middle", GREY))
    for n, name in enumerate(rows):
        if name in gaps:
            gap, y = gaps[name], TOP + ROW * n
            half = _half(gap)
            shapes.append(
                f'<path d="M{place(gap.mean - half):.1f} {y}H{place(gap.mean + half):.1f}" '
                f'stroke="{_color(name)}" stroke-width="1.5"/>'
            )
            shapes.append(f'<circle cx="{place(gap.mean):.1f}" cy="{y}" r="3.5" fill="{_color(name)}"/>')
    return shapes


def _half(gap: Estimate) -> float:
    return 0.0 if np.isnan(gap.half_width) else gap.half_width


def _curves(left: float, top: float, title: str, arms: Mapping[str, Any]) -> list[str]:
    """Mean accuracy along training, with error bars; each arm has its name at its end."""
    means = {name: [interval(column) for column in arm.accuracy.T] for name, arm in arms.items()}
    ends = [(e.mean - _half(e), e.mean + _half(e)) for points in means.values() for e in points]
    low, high = min(end[0] for end in ends) - 0.01, max(end[1] for end in ends) + 0.01
    right = max(arm.steps[-1] for arm in arms.values())

    def place(step: float, value: float) -> tuple[float, float]:
        return left + step / right * CURVE_WIDTH * 0.84, top + (high - value) / (high - low) * CURVE_HEIGHT

    shapes = [_text(left, top - 14, title, extra=' font-weight="600"')]
    for value in ticks(low, high):
        y = place(0, value)[1]
        shapes.append(f'<path d="M{left:.0f} {y:.1f}h{CURVE_WIDTH * 0.84:.0f}" stroke="{LINES}"/>')
        shapes.append(_text(left - 6, y + 4, f"{value:.1f}", "end", GREY))
    for value in ticks(0, right):
        shapes.append(_text(place(value, low)[0], top + CURVE_HEIGHT + 18, f"{value:.0f}", "middle", GREY))
    shapes.append(_text(left + CURVE_WIDTH * 0.42, top + CURVE_HEIGHT + 38, "step", "middle"))
    labels: list[float] = []
    for number, (name, points) in enumerate(sorted(means.items(), key=lambda pair: -pair[1][-1].mean)):
        steps, color = arms[name].steps, COLORS[name]
        line = " ".join("{:.1f},{:.1f}".format(*place(s, e.mean)) for s, e in zip(steps, points, strict=True))
        shapes.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        for step, each in zip(steps, points, strict=True):
            x, upper = place(step, each.mean + _half(each))
            lower = place(step, each.mean - _half(each))[1]
            shapes.append(
                f'<path d="M{x + 2 * number:.1f} {upper:.1f}V{lower:.1f}" stroke="{color}" stroke-opacity="0.45"/>'
            )
        x, y = place(steps[-1], points[-1].mean)
        y = max(y, labels[-1] + 14) if labels else y
        labels.append(y)
        shapes.append(_text(x + 14, y + 4, name.replace("_", " "), fill=color))
    return shapes


def ticks(low: float, high: float) -> list[float]:
    """About five round numbers between low and high."""
    size = 10.0 ** np.floor(np.log10((high - low) / 4))
    step = next(size * factor for factor in (1, 2, 5, 10) if (high - low) / (size * factor) <= 5)
    return [float(n * step) for n in range(int(np.ceil(low / step - 1e-9)), int(np.floor(high / step + 1e-9)) + 1)]
