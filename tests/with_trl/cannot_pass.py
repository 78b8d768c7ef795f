"""TRL's tests that pass with TRL's trainers and cannot pass with ours, and why."""

from __future__ import annotations

SLIDING = "AlignmentCallback refuses a model with sliding-window layers when it is constructed, without vLLM"

CANNOT_PASS: dict[tuple[str, str], str] = {
    ("callback", "test_train[trl-internal-testing/tiny-Cohere2ForCausalLM]"): SLIDING,
    ("callback", "test_train_with_cast_lm_head_to_fp32[trl-internal-testing/tiny-Gemma2ForCausalLM]"): SLIDING,
}
"""By mode and the name of the test function, with its parameters or for all of them."""
