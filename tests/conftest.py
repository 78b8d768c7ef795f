"""Property tests draw the same examples in every run; `make fuzz` draws new ones each time."""

from __future__ import annotations

import os
from importlib.util import find_spec

# The environments of vLLM and S3 have no hypothesis: none of their tests uses it.
if find_spec("hypothesis"):
    from hypothesis import settings

    settings.register_profile("same", derandomize=True, database=None, deadline=None)
    settings.register_profile("new", deadline=None)
    settings.load_profile("new" if os.environ.get("FUZZ") == "long" else "same")
