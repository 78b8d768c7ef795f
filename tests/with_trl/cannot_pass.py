"""TRL's tests that pass with TRL's trainers and cannot pass with ours, and why."""

from __future__ import annotations

CANNOT_PASS: dict[tuple[str, str], str] = {
    ("callback", "test_train[trl-internal-testing/tiny-Cohere2ForCausalLM]"): (
        "the callback refuses models with sliding-window layers when it is added"
    ),
}
"""By mode and the name of the test function, with its parameters or for all of them."""
