"""What a trainer's loss contains beside the objective that is evaluated: every setting of TRL's is accounted for."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from importlib import import_module
from typing import Any

import pytest
import torch
from support.trainings import make
from transformers import TrainingArguments
from trl import DistillationTrainer, GRPOTrainer

from opd_align import OpdAlignError
from opd_align.core.objectives import GeneralisedJSD, SingleSample
from opd_align.training.adapters import adapt_trainer, other_rewards
from opd_align.training.rewards import RewardVerifier
from opd_align.training.trainers.distillation import GatedDistillationTrainer
from opd_align.training.trainers.gkd import GatedGKDTrainer

pytestmark = pytest.mark.filterwarnings("ignore")

RECOGNISED = {
    "gkd": {"lmbda": 1.0},
    "gold": {"lmbda": 1.0},
    "distillation": {},
    "grpo": {},
    "iw_opd": {"distillation_objective": "jsd", "loss_top_k": 0},
    "sdpo": {"distillation_mode": "full_logits"},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: Any) -> Any:
    torch.set_num_threads(1)

    @cache
    def trainer(kind: str) -> Any:
        return make(kind, tmp_path_factory.mktemp(kind), **RECOGNISED[kind])

    return trainer


def changed(trainer: Any, monkeypatch: Any, **settings: Any) -> Any:
    """The trainer with other settings, on its arguments and where it keeps them."""
    for name, value in settings.items():
        for owner in (trainer, trainer.args):
            if hasattr(owner, name):
                monkeypatch.setattr(owner, name, value)
    return trainer


@pytest.mark.parametrize("kind", RECOGNISED)
def test_a_loss_that_is_evaluated_as_a_whole_is_recognised(kind: str, made: Any) -> None:
    assert adapt_trainer(made(kind)).unevaluated == ()


NAMED = [
    ("gkd", {"lmbda": 0.5}, "completions of the data set (lmbda=0.5)"),
    ("gkd", {"lmbda": 0.5, "seq_kd": True}, "completions of the teacher (lmbda=0.5)"),
    ("gold", {"lmbda": 0.0}, "completions of the data set (lmbda=0)"),
    ("iw_opd", {"lmbda": 0.0}, "completions of the data set (lmbda=0)"),
    ("iw_opd", {"distillation_objective": "iw_opd"}, "distillation_objective='iw_opd', iw_opd_gamma=0.5"),
    ("iw_opd", {"loss_top_k": 3}, "the divergence is of a few tokens (loss_top_k=3; evaluated: all)"),
    ("sdpo", {"distillation_mode": "sampled_token"}, "the loss is of the sampled token"),
    ("sdpo", {"distillation_mode": "topk_logits", "distillation_topk": 2}, "(distillation_topk=2)"),
    ("sdpo", {"distillation_weight": 0.5}, "the policy loss (distillation_weight=0.5)"),
    ("sdpo", {"include_environment_feedback": True}, "feedback in the teacher's prompt"),
    ("sdpo", {"num_iterations": 2}, "clipped importance weights"),
    ("grpo", {"beta": 0.04}, "the KL penalty (beta=0.04)"),
    ("grpo", {"entropy_coef": 0.5}, "the entropy bonus (entropy_coef=0.5)"),
    ("grpo", {"use_adaptive_entropy": True}, "the entropy bonus (entropy_coef=0)"),
    ("grpo", {"off_policy_mask_threshold": 0.1}, "off-policy completions are left out (off_policy_mask_threshold=0.1)"),
    ("grpo", {"top_entropy_quantile": 0.2}, "the selection of tokens by entropy (top_entropy_quantile=0.2)"),
    ("grpo", {"mask_truncated_completions": True}, "truncated completions are left out"),
    ("grpo", {"num_iterations": 3}, "used for several steps (num_iterations=3, steps_per_generation=1)"),
    ("grpo", {"steps_per_generation": 4}, "used for several steps (num_iterations=1, steps_per_generation=4)"),
    ("grpo", {"rollout_func": len}, "the completions of rollout_func"),
    ("grpo", {"aux_loss_enabled": True, "router_aux_loss_coef": 0.01}, "(router_aux_loss_coef=0.01)"),
    ("distillation", {"neftune_noise_alpha": 5.0}, "noise on the embeddings (neftune_noise_alpha=5)"),
]


@pytest.mark.parametrize(("kind", "settings", "named"), NAMED, ids=lambda value: str(value)[:40])
def test_a_setting_that_changes_the_loss_is_named(kind, settings, named, made, monkeypatch) -> None:
    (line,) = adapt_trainer(changed(made(kind), monkeypatch, **settings)).unevaluated
    assert named in line


def verify(**_: Any) -> list[float]:
    raise AssertionError("not called")


@pytest.mark.parametrize(
    ("rewards", "weights", "named"),
    [
        ([verify], [1.0], ()),
        ([verify, len], [1.0, 0.0], ()),
        ([RewardVerifier(verify).as_reward()], [1.0], ()),
        ([len], [1.0], ("the reward len (evaluated: the verifier)",)),
        ([verify, len], [1.0, 0.5], ("the sum of 2 reward functions (evaluated: the verifier)",)),
    ],
)
def test_rewards_apart_from_the_verifier_are_named(rewards, weights, named, made, monkeypatch) -> None:
    trainer = changed(made("grpo"), monkeypatch, reward_funcs=rewards, reward_weights=torch.tensor(weights))
    assert other_rewards(adapt_trainer(trainer), verify) == named


def test_an_objective_does_not_change_which_completions_are_trained_on(made, monkeypatch) -> None:
    gkd = adapt_trainer(changed(made("gkd"), monkeypatch, lmbda=0.5))
    assert gkd.with_any_objective == ("completions of the data set (lmbda=0.5)",)
    grpo = adapt_trainer(changed(made("grpo"), monkeypatch, beta=0.04))
    assert grpo.unevaluated
    assert not grpo.with_any_objective


def test_self_distillation_on_a_data_sets_context_is_not_evaluated_as_such(tmp_path: Any) -> None:
    options = {"distillation_mode": "full_logits", "num_loss_tokens_to_skip": 2, "generate_from_teacher": True}
    lines = adapt_trainer(make("sdft", tmp_path, **options)).unevaluated
    assert [line.split("(")[-1] for line in lines] == [
        "generate_from_teacher=True)",
        "num_loss_tokens_to_skip=2)",
        "evaluated: Self-1C)",
    ]


def test_the_objective_of_iw_opd_does_not_depend_on_settings_that_it_ignores(made: Any, monkeypatch: Any) -> None:
    own = {"distillation_objective": "iw_opd", "beta": 0.5, "loss_top_k": 3}
    assert adapt_trainer(changed(made("iw_opd"), monkeypatch, **own)).objective == SingleSample()
    other = {"distillation_objective": "jsd", "beta": 1.0, "loss_top_k": 1}
    assert adapt_trainer(changed(made("iw_opd"), monkeypatch, **other)).objective == GeneralisedJSD(1.0)


def test_sampling_within_a_grammar_is_refused(made: Any, monkeypatch: Any) -> None:
    trainer = changed(made("distillation"), monkeypatch, vllm_structured_outputs_regex="[0-9]+")
    with pytest.raises(OpdAlignError, match=r"samples with vllm_structured_outputs_regex=\[0-9\]\+"):
        adapt_trainer(trainer)


# -- methods ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "base", "method"),
    [
        ("distillation", DistillationTrainer, "training_step"),
        ("distillation", DistillationTrainer, "_prepare_inputs"),
        ("distillation", DistillationTrainer, "_get_last_hidden_state"),
        ("distillation", DistillationTrainer, "_generate_and_score_completions"),
        ("grpo", GRPOTrainer, "_generate_and_score_completions"),
        ("grpo", GRPOTrainer, "_calculate_rewards"),
        ("grpo", GRPOTrainer, "_get_per_token_logps_and_entropies"),
    ],
)
def test_an_overridden_method_behind_the_loss_is_named(kind, base, method, made, monkeypatch) -> None:
    mine = type("Mine", (base,), {method: lambda self, *args, **kwargs: None})
    monkeypatch.setattr(made(kind), "__class__", mine)
    assert adapt_trainer(made(kind)).unevaluated == (f"{method}() of Mine (evaluated as {base.__name__}'s)",)


def test_methods_without_influence_on_the_loss_may_be_overridden(made: Any, monkeypatch: Any) -> None:
    names = ("log", "_log_metric", "evaluate", "prediction_step", "get_train_dataloader", "_save_checkpoint")
    mine = type("Mine", (GRPOTrainer,), {name: lambda self, *args, **kwargs: None for name in names})
    monkeypatch.setattr(made("grpo"), "__class__", mine)
    assert adapt_trainer(made("grpo")).unevaluated == ()


@pytest.mark.parametrize(("kind", "gated"), [("distillation", GatedDistillationTrainer), ("gkd", GatedGKDTrainer)])
def test_what_a_gated_trainer_overrides_is_its_gate(kind, gated, made, monkeypatch) -> None:
    monkeypatch.setattr(made(kind), "__class__", gated)
    assert adapt_trainer(made(kind)).unevaluated == ()
    monkeypatch.setattr(made(kind), "__class__", type("Mine", (gated,), {"training_step": lambda self: None}))
    assert len(adapt_trainer(made(kind)).unevaluated) == 1


# -- settings: a new one in TRL must be looked at ---------------------------------------------------------------------

CONFIGS = {
    "trl": ("DistillationConfig", "GRPOConfig", "RLOOConfig"),
    "trl.experimental.gkd": ("GKDConfig",),
    "trl.experimental.gold": ("GOLDConfig",),
    "trl.experimental.gmpo": ("GMPOConfig",),
    "trl.experimental.iw_opd": ("IWOPDConfig",),
    "trl.experimental.sdpo": ("SDPOConfig",),
    "trl.experimental.sdft": ("SDFTConfig",),
    "trl.experimental.server_distillation": ("ServerDistillationConfig",),
}


def words(text: str) -> list[str]:
    return text.split()


EVALUATED = words("""
beta distillation_alpha loss_type temperature top_p top_k min_p repetition_penalty generation_kwargs
max_completion_length max_new_tokens chat_template_kwargs max_tool_calling_iterations
""")
"""Part of the objective or of the sampling, or refused."""
IN_WORDS = words("""
lmbda seq_kd distillation_objective iw_opd_gamma iw_opd_epsilon loss_top_k loss_add_tail reverse_kl_top_1_mode
distillation_mode distillation_topk distillation_add_tail distillation_weight include_environment_feedback
environment_feedback_only_without_solution feedback_template generate_from_teacher num_loss_tokens_to_skip
teacher_prompt_template entropy_coef use_adaptive_entropy entropy_coef_min entropy_coef_max entropy_coef_delta
entropy_target off_policy_mask_threshold top_entropy_quantile mask_truncated_completions num_iterations
steps_per_generation distillation_is_clip router_aux_loss_coef reward_weights multi_objective_aggregation
reward_clip_range sync_ref_model ref_model_mixup_alpha ref_model_sync_steps use_bias_correction_kl
vllm_structured_outputs_regex
""")
"""Named if they change the loss, by themselves or with the setting that they belong to."""
AT_RATIO_ONE = words("""
epsilon epsilon_high delta sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_k_neg vespo_lambda_pos
vespo_lambda_neg importance_sampling_level vllm_importance_sampling_correction vllm_importance_sampling_mode
vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min vllm_importance_sampling_cap vllm_sync_frequency
""")
"""Without influence where completions are those of the present student, as in an evaluation; else see above."""
SCALES = ["scale_rewards", "normalize_advantages", "num_generations"]
"""Scale the update of a question, and do not turn it."""
OTHER = words("""
learning_rate model_init_kwargs trust_remote_code disable_dropout cast_lm_head_to_fp32 remove_unused_columns
num_generations_eval shuffle_dataset pad_to_multiple_of generation_batch_size cache_implementation use_vllm
use_teacher_server log_completions log_multimodal num_completions_to_print log_unique_prompts log_completions_hub_repo
log_completions_steps wandb_log_unique_prompts use_transformers_continuous_batching
transformers_continuous_batching_config use_transformers_paged chat_template_path dataset_text_field dataset_kwargs
dataset_num_proc eos_token max_length truncation_mode packing packing_strategy padding_free eval_packing
completion_only_loss assistant_only_loss activation_offloading pad_token max_prompt_length callbacks
max_reprompt_len use_successful_as_teacher dont_reprompt_on_self_success success_reward_threshold reprompt_template
ds3_gather_for_generation
solution_template remove_thinking_from_demonstration diagnostics_warning_interval diagnostics_flat_tolerance
""")
"""The optimizer, data, speed and logs; and how SDPO chooses and shows a solution, which `Self-1C` stands for."""
PREFIXES = (
    "teacher_model_", "teacher_tokenizer", "teacher_update_rate", "teacher_sync_steps", "uld_", "use_uld_loss",
    "use_extended_uld", "vllm_mode", "vllm_model_impl", "vllm_enable_sleep_mode", "vllm_server_", "vllm_group_port",
    "vllm_gpu_memory_utilization", "vllm_max_model_length", "vllm_tensor_parallel_size",
)  # fmt: skip
"""Which model the teacher is; how vLLM runs; GOLD's loss for another tokenizer, which is refused."""


def test_every_setting_of_trls_trainers_is_accounted_for() -> None:
    inherited = {field.name for field in fields(TrainingArguments)}
    known = {*EVALUATED, *IN_WORDS, *AT_RATIO_ONE, *SCALES, *OTHER}
    found = set()
    for module, names in CONFIGS.items():
        for name in names:
            found |= {field.name for field in fields(getattr(import_module(module), name))} - inherited
    assert len(found) >= 150
    new = {name for name in found - known if not name.startswith(PREFIXES)}
    assert not new, "does this setting change the loss? Name it in `_other_terms` of opd_align/training/adapters.py"
