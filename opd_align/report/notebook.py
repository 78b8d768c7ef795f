"""An analysis as a notebook shows it: the recommendation, the ranking, correct against incorrect rollouts.

Text from outside is escaped. Colours and fonts are those of the notebook. Nothing is computed here.
"""

from __future__ import annotations

import html

from opd_align.core.engine import Analysis
from opd_align.report.recommendation import recommendation
from opd_align.report.slices import Slices
from opd_align.report.table_format import Table
from opd_align.report.tables import contrast_table, objective_names, ranking_table
from opd_align.types import printable


def analysis_html(analysis: Analysis) -> str:
    """The analysis as a fragment of HTML; with several objectives, the first one."""
    slices = Slices(analysis.nodes, n_analyzed=analysis.questions.num_rows)
    from_teacher, from_reward = objective_names(analysis)
    objective = (*from_teacher, *from_reward)[0]
    tables = [ranking_table(slices, objective)] if objective in slices.objectives else []
    if tables and objective in from_teacher:
        tables.append(contrast_table(slices, objective))
    parts = [f"<p><strong>{_escaped(recommendation(slices.decision))}</strong></p>", *map(_table_html, tables)]
    others = [name for name in (*from_teacher, *from_reward) if name != objective]
    about = repr(analysis).removeprefix("Analysis(").removesuffix(")")
    if others:
        about += f"; other objectives: {', '.join(others)}"
    return f"<div>{''.join(parts)}<p><small>{_escaped(about)}</small></p></div>"


def _table_html(table: Table) -> str:
    def row_html(texts: list[str], tag: str) -> str:
        sides = ["left" if column.kind == "text" else "right" for column in table.columns]
        cells = zip(sides, texts, strict=True)
        return "<tr>" + "".join(f'<{tag} style="text-align:{side}">{_escaped(text)}</{tag}>' for side, text in cells)

    head = row_html([column.name for column in table.columns], "th")
    body = "".join(row_html(texts, "td") for texts in table.formatted_rows())
    title = f'<caption style="text-align:left;caption-side:top">{_escaped(table.title)}</caption>'
    return f"<table>{title}<thead>{head}</thead><tbody>{body}</tbody></table>"


def _escaped(text: str) -> str:
    return html.escape(printable(text))
