"""Plot one path: the exact success probability after each token, and two estimates of it.

Draws the figure of docs/concepts.md; without FILE.svg it is written to docs/images/path_values.svg.

    python examples/path_values.py [FILE.svg]
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from opd_align import Budget, ExactWorld, Question, Settings
from opd_align.core.collect import collect
from opd_align.core.estimate import estimate

FIGURE = Path(__file__).parents[1] / "docs" / "images" / "path_values.svg"
WIDTH, HEIGHT, LEFT, TOP = 760, 300, 46, 34


def main(target: Path) -> None:
    world = ExactWorld.random(3, length=120)
    teachers = [world.tilted_teacher(), world.adversarial_teacher()]
    settings = Settings(budget=Budget(allocation="paper"))
    evidence = collect(world, teachers, Question("a world"), world, settings=settings)
    index = evidence.correct.index(False)
    scores = evidence.paths[index]
    own = np.flatnonzero(scores.token_C == np.repeat(scores.completion_T, np.diff(scores.offsets)))
    truth = world.exact_q_along(scores)[own]
    pooled = estimate(evidence.tree, evidence.paths, method="pooled")[index].q_C[own]
    backup = estimate(evidence.tree, evidence.paths)[index]
    low, high = (bound[own] for bound in backup.interval_C())
    target.write_text(draw(truth, pooled, backup.q_C[own], low, high))
    for name, value in (("pooled", pooled), ("backup", backup.q_C[own])):
        print(f"{name}: mean |Q - truth| along the path {np.nanmean(np.abs(value - truth)):.3f}")


def draw(truth: np.ndarray, pooled: np.ndarray, backup: np.ndarray, low: np.ndarray, high: np.ndarray) -> str:
    def points(y: Sequence[float], x: Sequence[int] | None = None) -> str:
        steps = range(len(y)) if x is None else x
        return " ".join(
            f"{LEFT + step * (WIDTH - LEFT - 14) / (len(truth) - 1):.1f},{TOP + (1 - value) * (HEIGHT - TOP - 40):.1f}"
            for step, value in zip(steps, y, strict=True)
        )

    steps = list(range(len(truth)))
    band = points([*high, *low[::-1]], [*steps, *steps[::-1]])
    shapes = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for value in (0, 0.5, 1):
        y = TOP + (1 - value) * (HEIGHT - TOP - 40) + 4
        shapes.append(f'<text x="{LEFT - 8}" y="{y:.0f}" text-anchor="end">{value:g}</text>')
        shapes.append(line(points([value, value], [0, steps[-1]]), "#d8d8d8"))
    shapes.append(f'<polygon points="{band}" fill="#0072b2" fill-opacity="0.18"/>')
    for values, colour, x, label in (
        (pooled, "#d55e00", 300, "pooled"),
        (backup, "#0072b2", 120, "backup, 90 % interval"),
        (truth, "#222222", LEFT, "truth"),
    ):
        shapes.append(line(points(values), colour))
        shapes.append(
            f'<rect x="{x}" y="12" width="16" height="4" fill="{colour}"/><text x="{x + 22}" y="18">{label}</text>'
        )
    label = "tokens of an incorrect rollout →  P(success after this token)"
    shapes.append(f'<text x="{LEFT}" y="{HEIGHT - 10}">{label}</text>')
    style = 'font-family="sans-serif" font-size="13" fill="#222222"'
    body = "\n".join(shapes)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {style}>\n{body}\n</svg>\n'


def line(points: str, colour: str) -> str:
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>'


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FIGURE)
