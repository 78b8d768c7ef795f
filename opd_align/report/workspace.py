"""A W&B workspace for a training: what to watch first, the alarm, then the charts of the dashboard.

The charts are those of the metric registry, with the keys that the training has logged, so that teachers and objectives
are named as they are there. Only `save` talks to W&B.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from opd_align.core.metric_registry import HEADLINE, HEADLINE_SECTION, METRICS
from opd_align.core.metric_schema import CHARTS, Metric
from opd_align.report.history import PREFIX, Training
from opd_align.types import OpdAlignError

LOGGED_AS = "train/"
"""What the trainer's integration puts before every key."""

STEP = f"{LOGGED_AS}global_step"
ALARM = {
    "Probability that the teacher helps": ("alarm/p_helps",),
    "Alarm: 1 helps, 0 unsure, −1 fades, −2 harms": ("alarm/level",),
    "Alignment from all evaluations so far": ("alarm/alignment", "alarm/low", "alarm/high"),
}
SECTIONS = {"alignment": "Alignment", "selection": "Choosing tokens", "gate": "Gate", "cost": "Cost of evaluations"}


class Panel(NamedTuple):
    """A line chart: its title and the keys of its lines, as W&B has them."""

    title: str
    keys: tuple[str, ...]


class Section(NamedTuple):
    """A section of the workspace; the first ones are open."""

    title: str
    panels: tuple[Panel, ...]
    is_open: bool = False


def workspace_sections(training: Training) -> list[Section]:
    """The sections of a training's workspace; raises OpdAlignError if nothing has been evaluated."""
    logged = _logged_keys(training)
    by_stem = {metric.stem: metric for metric in METRICS}
    if not logged:
        raise OpdAlignError(f"{str(training.folder)!r} has no evaluation yet, so the keys of its charts are not known")

    def panel(title: str, metrics: Iterable[Metric]) -> Panel:
        return Panel(title, tuple(f"{LOGGED_AS}{key}" for metric in metrics for key in _keys(metric, training, logged)))

    def section(title: str, panels: Iterable[Panel], *, is_open: bool = False) -> Iterator[Section]:
        shown = tuple(each for each in panels if each.keys)
        if shown:
            yield Section(title, shown, is_open)

    titles = {stem: next(iter(by_stem[stem].charts)) for stem in HEADLINE}
    found = [
        *section(HEADLINE_SECTION[0], [panel(titles[stem], [by_stem[stem]]) for stem in HEADLINE], is_open=True),
        *section(
            "Alarm",
            [panel(title, [by_stem[stem] for stem in stems]) for title, stems in ALARM.items()],
            is_open=True,
        ),
    ]
    others = [metric for metric in METRICS if not metric.stem.startswith("alarm/")]
    gated = any(key.startswith("gate/") or "/gated/" in key for key in logged)
    for name, title in SECTIONS.items():
        if name == "gate" and not gated:
            continue
        charts = [chart for chart in CHARTS if chart.section == name]
        shown = [panel(chart.title, [each for each in others if chart.title in each.charts]) for chart in charts]
        found += section(title, shown)
    return found


def build_workspace(sections: Sequence[Section], *, entity: str, project: str, name: str) -> Any:
    """The workspace as an object of `wandb_workspaces`, which its `save` sends to W&B."""
    try:
        import wandb_workspaces.reports.v2 as reports
        import wandb_workspaces.workspaces as workspaces
    except ImportError as error:
        raise OpdAlignError("workspace needs wandb-workspaces: pip install 'opd-align[wandb]'") from error

    def plot(panel: Panel, at: int) -> Any:
        x, y = 12 * (at % 2), 6 * (at // 2)
        return reports.LinePlot(
            title=panel.title, x=STEP, y=list(panel.keys), layout=reports.Layout(x=x, y=y, w=12, h=6)
        )

    return workspaces.Workspace(
        entity=entity,
        project=project,
        name=name,
        settings=workspaces.WorkspaceSettings(x_axis=STEP),
        sections=[
            workspaces.Section(
                name=section.title,
                panels=[plot(panel, at) for at, panel in enumerate(section.panels)],
                is_open=section.is_open,
                pinned=section.is_open,
                layout_settings=workspaces.SectionLayoutSettings(columns=2, rows=2),
            )
            for section in sections
        ],
    )


def _keys(metric: Metric, training: Training, logged: set[str]) -> list[str]:
    if metric.level != "teacher":
        keys = [metric.key()]
    else:
        names = [variant.rpartition("/") for variant in training.variants]
        keys = [metric.key(teacher, objective) for teacher, _, objective in names]
    return [key for key in keys if key in logged]


def _logged_keys(training: Training) -> set[str]:
    """Keys of every number that was logged; unknown ones (None) were not."""
    found: set[str] = set()
    for evaluation in training.evaluations:
        found |= {f"{PREFIX}{key}" for key, value in evaluation.common.items() if value is not None}
        for variant, numbers in evaluation.variants.items():
            found |= {f"{PREFIX}{variant}/{stem}" for stem, value in numbers.items() if value is not None}
    if found:
        found |= {key for key in training.log.names if key.startswith("gate/")}
    return found
