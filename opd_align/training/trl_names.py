"""The tables of `trl_compat`: what opd-align relies on in TRL, transformers, accelerate, DeepSpeed and vLLM.

Data only: `trl_compat` checks it. Importing this module imports none of these libraries.
"""

from __future__ import annotations

from dataclasses import dataclass, field

TRL_MIN, TRL_BELOW = "1.16", "1.17"
"""The tested versions of TRL: at least the first, below the second. Others are refused."""

UNTESTED = "OPD_ALIGN_UNTESTED_TRL"
"""The environment variable that, set to 1, accepts a newer TRL if everything in the tables is as expected."""

TESTED = {
    "trl": f">={TRL_MIN},<{TRL_BELOW}",
    "transformers": ">=5.16,<6",
    "accelerate": ">=1.10,<2",
    "deepspeed": ">=0.18,<1",
    "peft": ">=0.18,<1",
}

TITLES = {"trl": "TRL", "vllm": "vLLM", "deepspeed": "DeepSpeed", "peft": "PEFT"}


@dataclass(frozen=True)
class Call:
    """How a function is called. Any other parameter must have a default; `self` is not counted.

    Args:
        positional: Leading parameters, in this order.
        keywords: Parameters that are passed by name.
    """

    positional: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()


def call(*positional: str, keywords: tuple[str, ...] = ()) -> Call:
    return Call(positional, keywords)


@dataclass(frozen=True)
class Name:
    """An attribute of a module.

    Args:
        module: Import name of the module.
        attribute: Name of the attribute.
        call: How it is called; `None`: not checked.
        members: Members of it that are used, and how they are called.
    """

    module: str
    attribute: str
    call: Call | None = None
    members: dict[str, Call | None] = field(default_factory=dict)


SIDE = ("hidden", "weight", "bias")
SCALES = ("logit_scale", "final_logit_softcapping")

NAMES: dict[str, Name] = {
    # The trainers that gates are built on; their methods are in METHODS.
    "DistillationTrainer": Name("trl", "DistillationTrainer"),
    "GRPOTrainer": Name("trl", "GRPOTrainer"),
    "GKDTrainer": Name("trl.experimental.gkd", "GKDTrainer"),
    "SDPOTrainer": Name("trl.experimental.sdpo", "SDPOTrainer"),
    # The events in which a gate checks that it was applied.
    "TrainerCallback": Name(
        "transformers", "TrainerCallback", None,
        {event: call("args", "state", "control") for event in ("on_pre_optimizer_step", "on_step_end")},
    ),
    "DataCollatorForChatML": Name(
        "trl.experimental.utils", "DataCollatorForChatML", None, {"__call__": call("examples")}
    ),
    "is_conversational": Name("trl.data_utils", "is_conversational", call("example")),
    # The chunked loss: `KernelCall` reads the kernel's arguments by position.
    "ChunkedDivergenceFunction": Name(
        "trl.kernels.chunked_divergence", "ChunkedDivergenceFunction", None,
        {"forward": call("ctx", *(f"student_{name}" for name in SIDE), *(f"teacher_{name}" for name in SIDE), "beta",
                         "temperature", *(f"student_{name}" for name in SCALES),
                         *(f"teacher_{name}" for name in SCALES))},
    ),
    "ChunkedLogProbFunction": Name(
        "trl.kernels.chunked_logprob", "ChunkedLogProbFunction", None,
        {"forward": call("ctx", *SIDE, "targets", "temperature", "chunk_size", "final_logit_softcapping", "logit_scale",
                         "outputs")},
    ),
    "distillation_kernel": Name("trl.trainer.distillation_trainer", "ChunkedDivergenceFunction"),
    "maybe_gather_lm_head_ctx": Name("trl.trainer.utils", "maybe_gather_lm_head_ctx", call()),
    "split_pixel_values_by_grid": Name("trl.trainer.utils", "split_pixel_values_by_grid", call("batch")),
    "split_tensor_dict": Name("trl.trainer.utils", "split_tensor_dict", call("tensor_dict", "num_chunks")),
    "unsplit_pixel_values_by_grid": Name("trl.trainer.utils", "unsplit_pixel_values_by_grid", call("batch")),
    # Wrapped models.
    "ForwardRedirection": Name(
        "trl.models.utils", "_ForwardRedirection", None,
        {"__call__": call("wrapper_module", "original_module", "method")},
    ),
    "add_hooks": Name("trl.models.utils", "add_hooks", call("model")),
    "remove_hooks": Name("trl.models.utils", "remove_hooks", call("model")),
    "prepare_deepspeed": Name("trl.models", "prepare_deepspeed", call("model", "accelerator")),
    "unwrap_model_for_generation": Name(
        "trl.models.utils", "unwrap_model_for_generation",
        call("model", "accelerator", keywords=("generation_kwargs", "gradient_checkpointing_kwargs")),
    ),
    "is_peft_model": Name("accelerate.utils", "is_peft_model", call("model")),
    "Accelerator": Name(
        "accelerate", "Accelerator", None,
        {"unwrap_model": call("model", keywords=("keep_torch_compile",)), "autocast": call(), "backward": call("loss"),
         "prepare_model": call("model", keywords=("device_placement", "evaluation_mode")),
         "reduce": call("tensor", "reduction"), "gather": call("tensor"),
         "pad_across_processes": call("tensor", keywords=("dim", "pad_index"))},
    ),
    "CallbackHandler": Name(
        "transformers.trainer_callback", "CallbackHandler", None, {"on_log": call("args", "state", "control", "logs")}
    ),
    # The trainer's own vLLM.
    "VLLMGeneration": Name(
        "trl.generation.vllm_generation", "VLLMGeneration", None,
        {"sync_weights": call(), "_iter_named_params": call()},
    ),
    "BaseTunerLayer": Name(
        "peft.tuners.tuners_utils", "BaseTunerLayer", None, {"get_base_layer": call(), "merged_adapters": None}
    ),
    # `accelerate launch`, started by `opd-align train`.
    "launch_main": Name("accelerate.commands.launch", "main", call()),
    # Used by `backends.hf`, `backends.hf_attention` and `backends.precision`, below this layer.
    "PretrainedConfig": Name(
        "transformers", "PretrainedConfig", None, {"_attn_implementation": None, "get_text_config": call("decoder")}
    ),
    "AttentionInterface": Name("transformers", "AttentionInterface", None, {"register": call("key", "value")}),
    "AttentionMaskInterface": Name("transformers", "AttentionMaskInterface", None, {"register": call("key", "value")}),
    "sdpa_attention_forward": Name(
        "transformers.integrations.sdpa_attention", "sdpa_attention_forward",
        call("module", "query", "key", "value", "attention_mask"),
    ),
    "sdpa_mask": Name("transformers.masking_utils", "sdpa_mask"),
    "Cache": Name("transformers", "Cache", call(keywords=("layer_class_to_replicate",))),
    "DynamicLayer": Name(
        "transformers.cache_utils", "DynamicLayer", None,
        {"update": call("key_states", "value_states"), "batch_select_indices": call("indices")},
    ),
    "clear_device_cache": Name("accelerate.utils.memory", "clear_device_cache", call()),
    "should_reduce_batch_size": Name("accelerate.utils.memory", "should_reduce_batch_size", call("exception")),
}  # fmt: skip
"""What other modules import from here, and what the layers below import themselves."""

AT_RUN_TIME = (
    "Accelerator", "PretrainedConfig", "AttentionInterface", "AttentionMaskInterface", "sdpa_attention_forward",
    "sdpa_mask", "Cache", "DynamicLayer",
    "clear_device_cache", "should_reduce_batch_size",
)  # fmt: skip
"""Names that no module imports from here, or only on use: checked with the attributes of a trainer."""

METHODS: dict[str, dict[str, Call]] = {
    "Trainer": {
        "compute_loss_context_manager": call(),
        "get_batch_samples": call("epoch_iterator", "num_batches", "device"),
        "training_step": call("model", "inputs", "num_items_in_batch"),
    },
    "GKDTrainer": {
        "training_step": call("model", "inputs", "num_items_in_batch"),
        "compute_loss": call("model", "inputs", "return_outputs", "num_items_in_batch"),
        "generalized_jsd_loss": call(
            "student_logits", "teacher_logits",
            keywords=("labels", "beta", "temperature", "reduction", "num_items_in_batch"),
        ),
        "generate_on_policy_outputs": call("model", "inputs", "generation_config"),
    },
    "DistillationTrainer": {
        "_generate_and_score_completions": call("inputs"),
        "_compute_loss": call("unwrapped_student", "inputs", "num_items_in_batch"),
        "_get_last_hidden_state": call("unwrapped_model", "input_ids", "attention_mask", "logits_to_keep"),
        "compute_loss": call("model", "inputs", "return_outputs", "num_items_in_batch"),
    },
    "GRPOTrainer": {
        "_generate_and_score_completions": call("inputs"),
        "_compute_loss": call("model", "inputs"),
    },
    "SDPOTrainer": {"_dispatch_self_distillation_callback": call("event_name")},
}  # fmt: skip
"""Methods of trainers, by class, that opd-align overrides or calls."""

ALWAYS = ("log", "compute_loss_context_manager")
"""Methods of every trainer that the callback or a gate calls."""

COMMON = (
    "accelerator", "args", "callback_handler", "control", "is_deepspeed_enabled", "is_fsdp_enabled", "model",
    "model_wrapped", "processing_class", "state",
)  # fmt: skip

ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "Trainer": COMMON,
    "GKDTrainer": (
        "beta", "lmbda", "seq_kd", "temperature", "teacher_model", "generation_config", "generation_kwargs", "_metrics",
        "data_collator", "loss_is_scaled_for_ga",
    ),
    "GOLDTrainer": ("beta", "lmbda", "teacher_model", "use_uld_loss", "use_vllm"),
    "IWOPDTrainer": ("beta", "lmbda", "teacher_model", "teacher_client", "use_vllm"),
    "DistillationTrainer": (
        "beta", "teacher_model", "_metrics", "_tokenizer", "eos_token_ids", "_forward_redirection", "use_vllm",
        "_buffered_inputs",
    ),
    "GRPOTrainer": (
        "_metrics", "_tokenizer", "eos_token_ids", "reward_funcs", "tools", "environments", "use_vllm", "rollout_func",
        "aux_loss_enabled", "router_aux_loss_coef", "_buffered_inputs",
    ),
    "RLOOTrainer": ("reward_funcs", "use_vllm", "aux_loss_enabled", "router_aux_loss_coef"),
    "SDPOTrainer": ("_metrics", "_tokenizer", "eos_token_ids", "reward_funcs", "teacher_model", "use_vllm"),
    "SDFTTrainer": ("teacher_model", "use_vllm"),
}  # fmt: skip
"""Attributes of a constructed trainer, by class."""

MODEL_CONFIG = "llm.llm_engine.vllm_config.model_config"

VLLM_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "colocate": (
        "mode", "enable_sleep_mode", "sync_weights", "model", "_iter_named_params", "tensor_parallel_size",
        "_llm_weights_sleeping", "llm.generate", "llm.sleep", "llm.wake_up",
        *(f"{MODEL_CONFIG}.{name}" for name in ("max_model_len", "model", "dtype", "get_vocab_size")),
    ),
    "server": ("mode", "enable_sleep_mode", "sync_weights", "model", "_iter_named_params", "_weight_metadata"),
}  # fmt: skip
"""Attributes of a trainer's `vllm_generation`, by its mode, with those that `backends.vllm` reads of its engine."""

CLIENT_ATTRIBUTES = ("base_url", "model")
"""Attributes of a client of a vLLM server: the trainer's own, on the first process only, and that of a teacher."""

SYNCED = ("DistillationTrainer", "GRPOTrainer", "RLOOTrainer", "SDPOTrainer", "SDFTTrainer")
"""Trainers that remember in `_last_loaded_step` which weights their vLLM has; the others always sync."""


GENERATED = {
    "DistillationTrainer": ("completion_ids", "completion_mask"),
    "GRPOTrainer": ("completion_ids", "completion_mask", "advantages"),
}
"""What `_generate_and_score_completions` returns, by class."""

SDPO_EVENTS = {
    "on_teacher_context_built": ("model", "completion_mask", "self_distillation_mask"),
    "on_self_distillation_batch_prepared": ("model", "self_distillation_mask"),
}
"""The arguments of SDPO's own callback events."""
