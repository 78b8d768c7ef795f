"""The scatter plot of the prediction study: realised gain against two predictors, one point per teacher."""

from __future__ import annotations

from html import escape

import numpy as np
from _prediction_analysis import HEADLINE, Study, spearman

PANEL, GAP, LEFT, TOP, TALL, LEGEND = 330, 66, 62, 44, 330, 200
COLORS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f5539", "#444444", "#8a7ad1", "#a3b300",
)  # fmt: skip
PANELS = (
    (HEADLINE, "SR-weighted alignment, before training"),
    ("teacher_accuracy", "the teacher's own accuracy"),
)


def scatter(study: Study) -> str:
    color_of = dict(zip(study.families, COLORS, strict=False))
    width = LEFT + 2 * PANEL + GAP + LEGEND
    height = TOP + TALL + 52
    shapes = [f'<rect width="{width}" height="{height}" fill="#ffffff"/>']
    for number, (name, label) in enumerate(PANELS):
        shapes += _panel(study, name, label, LEFT + number * (PANEL + GAP), color_of)
    x = LEFT + 2 * PANEL + GAP + 22
    for number, (family, color) in enumerate(color_of.items()):
        y = TOP + 12 + 21 * number
        shapes.append(f'<circle cx="{x}" cy="{y}" r="5" fill="{color}"/>')
        shapes.append(f'<text x="{x + 12}" y="{y + 4}">{escape(family.replace("_", " "))}</text>')
    y = TOP + 30 + 21 * len(color_of)
    for number, (plain, text) in enumerate(((True, "KL(student ‖ teacher)"), (False, "another loss"))):
        shapes += [
            _mark(x, y + 21 * number, "#888888", plain),
            f'<text x="{x + 12}" y="{y + 21 * number + 4}">{text}</text>',
        ]
    style = 'font-family="system-ui, sans-serif" font-size="12" fill="#222222"'
    body = "\n".join(shapes)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {style}>\n{body}\n</svg>\n'


def _mark(x: float, y: float, color: str, plain: bool) -> str:
    if plain:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{color}"/>'
    return f'<path d="M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z" fill="#ffffff" stroke="{color}" stroke-width="2"/>'


def _panel(study: Study, name: str, label: str, left: int, color_of: dict[str, str]) -> list[str]:
    value_E, half_E = study.value_of[name], np.nan_to_num(study.half_width_of[name])
    known = np.flatnonzero(np.isfinite(value_E))
    low, high = (0.0, 1.0) if name == "teacher_accuracy" else (value_E[known].min() - 0.08, value_E[known].max() + 0.08)
    bottom = min(gain.low for gain in study.gains) - 0.02
    top = max(gain.high for gain in study.gains) + 0.02

    def at(x: float, y: float) -> tuple[float, float]:
        return left + (x - low) / (high - low) * PANEL, TOP + (top - y) / (top - bottom) * TALL

    rho = spearman(value_E[known], study.gain_E[known])
    shapes = [f'<text x="{left}" y="{TOP - 14}" font-weight="600">Spearman {rho:.2f} ({len(known)} teachers)</text>']
    for value in _ticks(bottom, top):
        y = at(low, value)[1]
        stroke = "#999999" if abs(value) < 1e-9 else "#e8e8e8"
        shapes.append(f'<path d="M{left} {y:.1f}h{PANEL}" stroke="{stroke}"/>')
        shapes.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#666666">{value:+.1f}</text>')
    for value in _ticks(low, high):
        x = at(value, top)[0]
        stroke = "#999999" if abs(value) < 1e-9 and low < 0 else "#e8e8e8"
        shapes.append(f'<path d="M{x:.1f} {TOP}v{TALL}" stroke="{stroke}"/>')
        shapes.append(f'<text x="{x:.1f}" y="{TOP + TALL + 16}" text-anchor="middle" fill="#666666">{value:.1f}</text>')
    shapes.append(f'<text x="{left + PANEL / 2}" y="{TOP + TALL + 38}" text-anchor="middle">{label}</text>')
    if left == LEFT:
        middle = TOP + TALL / 2
        shapes.append(
            f'<text transform="translate(16 {middle}) rotate(-90)" text-anchor="middle">gain in accuracy</text>'
        )
    for number in known:
        entry, gain, color = study.entries[number], study.gains[number], color_of[study.entries[number].family]
        (x, y), (_, y_low), (_, y_high) = (at(value_E[number], g) for g in (gain.mean, gain.low, gain.high))
        x_low, x_high = (
            float(np.clip(at(value_E[number] + s * half_E[number], 0)[0], left, left + PANEL)) for s in (-1, 1)
        )
        shapes.append(f'<path d="M{x:.1f} {y_low:.1f}V{y_high:.1f}M{x_low:.1f} {y:.1f}H{x_high:.1f}" '
                      f'stroke="{color}" stroke-opacity="0.3"/>')  # fmt: skip
    for number in known:
        entry, gain = study.entries[number], study.gains[number]
        mark = _mark(*at(value_E[number], gain.mean), color_of[entry.family], entry.loss == "reverse_kl")
        shapes.append(f"<g><title>{escape(entry.name)}: {gain.mean:+.2f}</title>{mark}</g>")
    return shapes


def _ticks(low: float, high: float) -> list[float]:
    step = 0.2
    return [step * n for n in range(int(np.ceil(low / step - 1e-9)), int(np.floor(high / step + 1e-9)) + 1)]
