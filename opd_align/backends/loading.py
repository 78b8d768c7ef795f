"""Models by name: a folder, a GGUF file, a name on the Hub, or one that ships with the package.

What comes back is a causal language model in eval mode with its tokenizer, ready for `backends.hf`. Files and names are
looked at before anything is loaded. This room knows transformers and PEFT; it knows no task and no teacher.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opd_align.types import OpdAlignError

EMBEDDED = "embedded:"
DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class LoadedModel:
    """A model and its tokenizer."""

    name: str
    model: Any
    tokenizer: Any

    @property
    def configs(self) -> tuple[Any, ...]:
        """Where the model names the tokens that end a reply."""
        return self.model.config, self.model.generation_config


def load_model(
    reference: str, *, adapter: str | None = None, dtype: str = "auto", device: str = "auto", name: str | None = None
) -> LoadedModel:
    """Loads a model; `auto` means a GPU if there is one, and the precision it was saved in (float32 on a CPU)."""
    check_model(reference, dtype=dtype)
    place, options = place_of(reference)
    tokenizer = load_tokenizer(reference)
    torch, transformers = _libraries()
    device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    precision = "float32" if dtype == "auto" and device == "cpu" else dtype
    options["dtype"] = precision if precision == "auto" else getattr(torch, precision)
    model = _from_pretrained(transformers.AutoModelForCausalLM, reference, place, options)
    if "gguf_file" in options:
        model = _plain(model)
    if adapter is not None:
        model = _adapted(model, adapter)
    try:
        model = model.to(device)
    except (RuntimeError, AssertionError) as error:  # torch says a device it was not built for with an assertion
        raise OpdAlignError(f"cannot put {reference!r} on the device {device!r}: {_first_line(error)}") from error
    return LoadedModel(name or short_name(reference), model.eval(), tokenizer)


def check_model(reference: str, *, dtype: str = "auto") -> None:
    """Refuses what cannot be there, without loading anything; a name on the Hub is taken on trust."""
    if dtype not in DTYPES:
        raise OpdAlignError(f"dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
    place_of(reference)


def short_name(reference: str) -> str:
    """A model's name for people: the last part of its reference, dots and all (Qwen3-0.6B)."""
    return Path(reference.removeprefix(EMBEDDED)).name.removesuffix(".gguf")


def load_tokenizer(reference: str, **given: Any) -> Any:
    """Only the tokenizer: enough to write prompts; `given` goes to transformers, such as a revision."""
    place, options = place_of(reference)
    return _from_pretrained(_libraries()[1].AutoTokenizer, reference, place, options | given)


def weight_bytes(reference: str, *, dtype: str = "auto", device: str = "auto") -> int:
    """How much memory a model's weights take, from its config alone: nothing is loaded."""
    torch, transformers = _libraries()
    place, options = place_of(reference)
    config = _from_pretrained(transformers.AutoConfig, reference, place, options)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    here = torch.cuda.is_available() if device == "auto" else device != "cpu"
    saved = getattr(config, "dtype", None) or torch.float32
    kept = getattr(torch, dtype) if dtype != "auto" else saved if here else torch.float32
    return sum(weight.numel() for weight in model.parameters()) * int(kept.itemsize)


def generation_configs(reference: str) -> tuple[Any, ...]:
    """The generation config by itself, where there is one: it names the tokens that end a reply."""
    place, options = place_of(reference)
    try:
        return (_libraries()[1].GenerationConfig.from_pretrained(place, **options),)
    except (OSError, ValueError):
        return ()


def _from_pretrained(kind: Any, reference: str, place: str, options: dict[str, Any]) -> Any:
    try:
        return kind.from_pretrained(place, **options)
    except Exception as error:  # damaged files, missing ones, no connection: each from another library
        raise OpdAlignError(
            f"cannot load {reference!r}: {_first_line(error)}. Give a folder made by save_pretrained, a .gguf file, "
            "the name of a model on the Hub (which needs a connection, or a copy in its cache), "
            f"or {EMBEDDED}student / {EMBEDDED}teacher"
        ) from error


def place_of(reference: str) -> tuple[str, dict[str, Any]]:
    """What transformers takes for a reference: a folder or Hub name, and the options that go with it."""
    if reference.startswith(EMBEDDED):
        from opd_align import embedded

        folders = {"student": embedded.student_path, "teacher": embedded.teacher_path}
        which = reference.removeprefix(EMBEDDED)
        if which not in folders:
            raise OpdAlignError(
                f"there is no {reference!r}; there are {' and '.join(EMBEDDED + name for name in folders)}"
            )
        return str(folders[which]()), {}
    path = Path(reference).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise OpdAlignError(f"{reference!r} does not exist")
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise OpdAlignError(f"{reference!r} is a folder without a config.json; a model is saved by save_pretrained")
        return str(path), {}
    if reference.startswith((".", "/", "~")) or reference.count("/") > 1:
        raise OpdAlignError(f"there is no folder {reference!r}")
    return reference, {}


def _plain(model: Any) -> Any:
    """What comes out of a GGUF file counts as quantised; its weights are plain, and a plain model holds them."""
    model.config.quantization_config = None
    plain = type(model)(model.config)
    plain.load_state_dict(model.state_dict())
    plain.generation_config = model.generation_config
    return plain.to(model.dtype)


def _adapted(model: Any, adapter: str) -> Any:
    try:
        from peft import PeftModel
    except ImportError as error:
        raise OpdAlignError("an adapter needs PEFT: pip install 'opd-align[train]'") from error
    try:
        return PeftModel.from_pretrained(model, adapter)
    except Exception as error:  # as above
        raise OpdAlignError(f"cannot load the adapter {adapter!r}: {_first_line(error)}") from error


def _libraries() -> tuple[Any, Any]:
    try:
        import torch
        import transformers
    except ImportError as error:
        raise OpdAlignError(f"language models need {error.name}: pip install 'opd-align[hf]'") from error
    return torch, transformers


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
