"""How scripts in two processes end: with code 0 and all of their output, or with the traceback of what failed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.processes import run_two_ranks

pytestmark = pytest.mark.distributed

SCRIPT = f"""
import sys
from pathlib import Path

sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from support.ending import leave
from torch import distributed

distributed.init_process_group("gloo")
if [str(distributed.get_rank())] == sys.argv[2:]:
    raise ValueError("a failure at the end")
output = (Path(sys.argv[1]) / str(distributed.get_rank())).open("w")
sys.stdout = output
print("the last line", end="")
leave()
"""


def test_all_output_is_written(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    run_two_ranks(tmp_path / "script.py", str(tmp_path))
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["the last line"] * 2


@pytest.mark.parametrize("rank", "01")
def test_a_failure_on_one_rank_is_not_hidden(rank, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    with pytest.raises(AssertionError, match="ValueError: a failure at the end"):
        run_two_ranks(tmp_path / "script.py", str(tmp_path), rank)
