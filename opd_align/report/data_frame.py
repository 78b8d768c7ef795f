"""The tables of an analysis as pandas data frames. pandas is imported when one is asked for."""

from __future__ import annotations

from typing import Any, get_args

import pyarrow as pa

from opd_align.core.engine import Analysis, TableName
from opd_align.types import OpdAlignError


def data_frame(analysis: Analysis, table: TableName = "nodes") -> Any:
    """One of the tables of an analysis.

    Args:
        analysis: The analysis.
        table: `nodes`, `children` or `questions`. The first two have a column `token_text` if the texts are known.
    """
    names = get_args(TableName)
    if table not in names:
        raise OpdAlignError(f"there is no table {table!r}; choose one of {', '.join(names)}")
    try:
        import pandas as pd  # noqa: F401
    except ModuleNotFoundError:
        raise OpdAlignError("to_pandas needs pandas: pip install pandas") from None
    rows: pa.Table = getattr(analysis, table)
    if analysis.texts and "token" in rows.column_names:
        texts = [analysis.texts.get(token) for token in rows["token"].to_pylist()]
        rows = rows.add_column(rows.column_names.index("token") + 1, "token_text", pa.array(texts, pa.string()))
    return rows.to_pandas()
