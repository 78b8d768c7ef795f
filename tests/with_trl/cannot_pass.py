"""TRL's tests that pass with TRL's trainers and cannot pass with ours, and why."""

from __future__ import annotations

CANNOT_PASS: dict[tuple[str, str], str] = {}
"""By mode and the name of the test function."""
