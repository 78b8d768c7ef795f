"""Stand-ins for the models and data sets that TRL's tests load from the Hugging Face hub.

The models have TRL's architectures, random weights and the tokenizer of the embedded models; they lie in a hub cache of
their own, which transformers reads in offline mode. Models with images have no stand-in.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, DatasetDict
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

OWNER = "trl-internal-testing"
REVISION = "0" * 40
TEMPLATES = {"qwen2": "qwen2_5", "qwen3": "qwen3", "qwen3_moe": "qwen3", "llama": "llama3"}
MODELS = {
    "tiny-Qwen2ForCausalLM-2.5": "qwen2",
    "small-Qwen2ForCausalLM-2.5": "qwen2",
    "tiny-Qwen3ForCausalLM": "qwen3",
    "tiny-Qwen3MoeForCausalLM": "qwen3_moe",
    "tiny-LlamaForCausalLM-3.2": "llama",
    "tiny-MistralForCausalLM-0.2": "mistral",
    "tiny-Gemma2ForCausalLM": "gemma2",
    "tiny-Cohere2ForCausalLM": "cohere2",
    "tiny-Qwen2ForSequenceClassification-2.5": "qwen2",
    "tiny-Qwen3ForSequenceClassification": "qwen3",
    "tiny-LlamaForSequenceClassification-3.2": "llama",
}
SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "max_position_embeddings": 2048,
}
MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}

SUBJECTS = ("The tree", "A river", "Our library")
VERBS = ("grows in spring", "keeps its course", "holds more", "ends where roads begin", "waits for rain", "branches")
SENTENCES = [f"{subject} {verb}." for subject in SUBJECTS for verb in VERBS]


def build_cache(folder: Path) -> None:
    """Writes all models in the layout of the hub's cache."""
    from opd_align.backends.loading import load_model

    tokenizer = load_model("embedded:student").tokenizer
    for name, architecture in MODELS.items():
        target = folder / f"models--{OWNER}--{name}"
        snapshot = target / "snapshots" / REVISION
        snapshot.mkdir(parents=True)
        (target / "refs").mkdir()
        (target / "refs" / "main").write_text(REVISION)
        special = {name: getattr(tokenizer, name) for name in ("pad_token_id", "eos_token_id", "bos_token_id")}
        sizes = SIZES | (MIXTURE if architecture.endswith("moe") else {}) | special | {"vocab_size": len(tokenizer)}
        config = AutoConfig.for_model(architecture, **sizes)
        torch.manual_seed(0)
        classifier = "SequenceClassification" in name
        if classifier:
            config.num_labels = 1
        auto = AutoModelForSequenceClassification if classifier else AutoModelForCausalLM
        auto.from_config(config).save_pretrained(snapshot)
        tokenizer.save_pretrained(snapshot)
        template = _template(TEMPLATES.get(architecture))
        if template is not None:
            other = AutoTokenizer.from_pretrained(snapshot)
            other.chat_template = template
            other.save_pretrained(snapshot)


def _template(name: str | None) -> str | None:
    """A chat template that TRL recognises, from the installed TRL."""
    import trl

    return None if name is None else (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text()


def _row(config: str, sentence: str) -> dict[str, Any]:
    begin, _, end = sentence.rpartition(" ")
    user, assistant = {"role": "user", "content": begin}, {"role": "assistant", "content": end}
    chat = config.startswith("conversational")
    if config.endswith("prompt_only"):
        return {"prompt": [user] if chat else begin}
    if config.endswith("prompt_completion"):
        return {"prompt": [user] if chat else begin, "completion": [assistant] if chat else f" {end}"}
    if config.endswith("language_modeling"):
        return {"messages": [user, assistant]} if chat else {"text": sentence}
    raise FileNotFoundError(f"no stand-in for the configuration {config!r} of {OWNER}/zen")


def load_dataset(name: str, config: str = "", *, split: str | None = None, streaming: bool = False, **_: Any) -> Any:
    """`datasets.load_dataset` for `trl-internal-testing/zen`."""
    if name != f"{OWNER}/zen":
        raise FileNotFoundError(f"no stand-in for the data set {name!r}")
    rows = [_row(config, sentence) for sentence in SENTENCES]
    splits = DatasetDict({"train": Dataset.from_list(rows[:16]), "test": Dataset.from_list(rows[16:])})
    if split is None:
        return splits
    return splits[split].to_iterable_dataset() if streaming else splits[split]
