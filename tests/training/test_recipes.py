"""Every recipe and configuration: documented, accepted by TRL's parser, and trained with on a CPU."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import trl
import yaml
from accelerate.commands.config import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_multi_gpu_env, prepare_simple_launcher_cmd_env
from torch.distributed.fsdp import StateDictType
from transformers import TrainerCallback

from opd_align.backends.chat import Chat
from opd_align.backends.loading import load_tokenizer
from opd_align.cli.main import main
from opd_align.core.objectives import ReverseKL
from opd_align.settings import Settings
from opd_align.training import launch
from opd_align.training import recipe as recipe_module
from opd_align.training.recipe import (
    QuestionArguments,
    parse_teachers,
    resolve_model,
    run_recipe,
    with_template_defaults,
)
from opd_align.training.trainers.gkd import DataCollatorWithColumns
from opd_align.types import OpdAlignError

RECIPES = sorted(launch.recipes())
SIZES = ["1gpu", "8gpu_zero2", "8gpu_zero3", "cpu_tiny"]
LAUNCHED = sorted([*SIZES, "8gpu_fsdp2"])
PROMPT_TOKENS = 512
"""Longest prompt that the engine of a recipe makes room for."""
MIX = "distillation_teacher_mix"
ALL = [(recipe, size) for recipe in RECIPES for size in launch.configs(recipe)]
CALLBACK = {"latest": None, "settings": Settings([ReverseKL()]), "teachers": ["teacher"]}
"""What a gate reads of a callback that has not evaluated yet."""

quiet = pytest.mark.filterwarnings("ignore")


def load_recipe(recipe, monkeypatch):
    """A recipe's script as a module."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    spec = spec_from_file_location(recipe, launch.folder() / f"{recipe}.py")
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, recipe, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def line(recipe, *flags, size="cpu_tiny"):
    return [recipe, "--config", str(launch.configs(recipe)[size]), *(str(flag) for flag in flags)]


def test_all_recipes_and_configurations_are_listed():
    assert RECIPES == [
        "distillation_divergence", "distillation_gates", "distillation_teacher_mix", "gkd_incorrect_only",
        "grpo_distill_on_failures", "self_distillation_contexts",
    ]  # fmt: skip
    assert len(ALL) == 24
    every = set(launch.folder().rglob("*.yaml"))
    launched = {launch.folder() / "accelerate" / f"{size}.yaml" for size in LAUNCHED}
    assert every == {launch.configs(recipe)[size] for recipe, size in ALL} | launched


@pytest.mark.parametrize(("recipe", "size"), ALL)
def test_a_configuration_documents_hardware_and_duration(recipe, size):
    text = launch.configs(recipe)[size].read_text()
    header = " ".join(line.lstrip("# ") for line in text.splitlines() if line.startswith("#"))
    for word in ("Hardware: ", "Time: ", "Metrics to watch: "):
        assert word in header, f"{recipe}/{size} does not document {word}"
    keys = re.findall(r"^(\w+):", text, re.MULTILINE)
    assert len(keys) == len(set(keys)), "a key is given twice"


@quiet
@pytest.mark.parametrize(("recipe", "size"), ALL)
def test_a_configuration_is_accepted_by_its_recipe(recipe, size, monkeypatch, capsys, tmp_path):
    """TRL's parser refuses unknown keys; the gate is built; no model is loaded."""
    module = load_recipe(recipe, monkeypatch)
    config = launch.configs(recipe)[size]
    # Without a GPU transformers accepts bfloat16 only with use_cpu.
    monkeypatch.setattr(sys, "argv", line(recipe, "--dry_run", "--use_cpu", "--output_dir", tmp_path, size=size))
    module.main()
    assert yaml.safe_load(config.read_text())["model_name_or_path"] in capsys.readouterr().out


@pytest.mark.parametrize(("recipe", "size"), ALL)
def test_engines_reserve_no_more_than_prompt_and_completion(recipe, size):
    """Without vllm_max_model_length the engine reserves the model's whole context: 40,960 tokens for Qwen3."""
    config = yaml.safe_load(launch.configs(recipe)[size].read_text())
    assert config.get("use_vllm", False) == (size != "cpu_tiny" and recipe != "gkd_incorrect_only")
    if config.get("use_vllm"):
        assert config["vllm_max_model_length"] == PROMPT_TOKENS + config["max_completion_length"]
        assert config.get("max_prompt_length", PROMPT_TOKENS) == PROMPT_TOKENS


@pytest.mark.parametrize("recipe", RECIPES)
def test_zero2_and_zero3_train_alike(recipe):
    two, three = (yaml.safe_load(launch.configs(recipe)[size].read_text()) for size in ("8gpu_zero2", "8gpu_zero3"))
    assert two == three


def test_sdpo_fits_its_long_teacher_prompts_with_a_micro_batch_of_two():
    batches = {}
    for size in ("1gpu", "8gpu_zero2", "8gpu_zero3"):
        config = yaml.safe_load(launch.configs("self_distillation_contexts")[size].read_text())
        assert config["per_device_train_batch_size"] == 2
        batches[size] = 2 * config["gradient_accumulation_steps"] * (1 if size == "1gpu" else 8)
        assert batches[size] % config["num_generations"] == 0
    assert batches == {"1gpu": 64, "8gpu_zero2": 256, "8gpu_zero3": 256}


GKD, DISTILLATION = "gkd_incorrect_only", "distillation_divergence"


@quiet
@pytest.mark.parametrize(
    ("recipe", "flags", "message"),
    [
        *((recipe, "--task arithmetics", "did you mean 'arithmetic'?") for recipe in RECIPES),
        *((recipe, "--no_such_flag 1", "unknown argument: '--no_such_flag'") for recipe in RECIPES),
        (GKD, "--unknow drop --max_steps 2 --lerning_rate 1", "did you mean --learning_rate?"),
        (GKD, "--max_steps many", "--max_steps/--max-steps: invalid int value: 'many'"),
        (GKD, "--lmbda 2", "lmbda must be in the range"),
        (GKD, "--denominator sum", "denominator must be one of keep, renormalise, trl, not 'sum'"),
        (GKD, "--unknown maybe", "unknown must be 'keep' or 'drop'"),
        (GKD, "--chat_template_kwargs yes", "chat_template_kwargs must be a mapping"),
        (GKD, "--model_revision v2", "model_revision applies to models on the Hub; 'embedded:student' is a folder"),
        (GKD, "--load_in_4bit", "add --use_peft"),
        (GKD, "--every_n_steps 0", "every_n_steps must be at least 1, not 0"),
        (GKD, "--max_overhead 2", "max_overhead must be a share"),
        (GKD, "--model_name_or_path ./nothing", "the folder './nothing' does not exist"),
        (DISTILLATION, "--denominator trl", "denominator must be one of keep, renormalise, not 'trl'"),
        (DISTILLATION, "--divergence quantil", "did you mean 'quantile'?"),
        (DISTILLATION, "--divergence quantile", "at is required for a quantile or a threshold"),
        (DISTILLATION, "--at 0.5", "divergence is calibrated, at is 0.5"),
        (DISTILLATION, "--measure length", "no measure 'length'"),
        ("distillation_gates", "--gate teachible", "unknown gate 'teachible'; did you mean 'teachable'?"),
        ("distillation_gates", "--gate contrastive_contexts --unknown maybe", "unknown must be 'keep' or 'drop'"),
        ("distillation_gates", "--denominator trl", "denominator must be one of keep, renormalise, not 'trl'"),
        (MIX, "--teachers embedded:teacher", "teachers must be given as name=path, not 'embedded:teacher'"),
        (MIX, "--teachers a=embedded:teacher a=embedded:careless", "there are two teachers with the name 'a'"),
        (MIX, "--teachers a=embedded:nobody", "there is no 'embedded:nobody'"),
        (MIX, "--teachers a=", "no model given; set teachers"),
        (MIX, "--teacher_model_name_or_path embedded:teacher", "use teachers, as name=path"),
        (MIX, "--strategy tompson", "strategy must be one of thompson, expected_gain, not 'tompson'; did you mean"),
        (MIX, "--floor 0.6", "floor must be between 0 and 1/2"),
        (MIX, "--teachers self=Self-1C", "the first teacher of a TeacherMix must be a model"),
        (MIX, "--teachers a=embedded:teacher self=self-3c", "'self' shows what a data set has no column for"),
        (MIX, "--kind nosuch", "has no column 'nosuch' for its kind"),
        (GKD, "--on_harm rolback", "on_harm must be one of none, rollback, stop, zero, not 'rolback'; did you mean"),
        (GKD, "--follow loss --on_harm stop", "follow must be one of alignment, pass_rate, not 'loss'"),
        (GKD, "--follow pass_rate", "follow='pass_rate' needs on_harm='rollback' or 'stop', not 'none'"),
        (GKD, "--follow pass_rate --on_harm zero", "follow='pass_rate' needs on_harm='rollback' or 'stop', not 'zero'"),
        ("self_distillation_contexts", "--on_harm stop", "on_harm is not supported with SDPO"),
        ("grpo_distill_on_failures", "--denominator sum", "not 'sum'"),
        ("grpo_distill_on_failures", "--teacher_model_name_or_path embedded:nobody", "there is no 'embedded:nobody'"),
        ("self_distillation_contexts", "--unknown maybe", "unknown must be 'keep' or 'drop'"),
        (
            "self_distillation_contexts",
            "--model_init_kwargs 3",
            "model_init_kwargs must be a mapping, on the command line",
        ),
    ],
)
def test_errors_are_printed_in_one_line_before_any_model_is_loaded(
    recipe, flags, message, monkeypatch, capsys, tmp_path
):
    module = load_recipe(recipe, monkeypatch)
    monkeypatch.setattr(sys, "argv", line(recipe, "--dry_run", "--output_dir", tmp_path, *flags.split()))
    with pytest.raises(SystemExit) as exit_info:
        run_recipe(module.main)
    captured = capsys.readouterr()
    assert exit_info.value.code == 2
    assert captured.out == ""
    assert captured.err.startswith("opd-align: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


@quiet
def test_an_unknown_key_is_refused(monkeypatch, tmp_path):
    module = load_recipe(GKD, monkeypatch)
    config = tmp_path / "mine.yaml"
    config.write_text(launch.configs(GKD)["cpu_tiny"].read_text() + "max_step: 3\n")
    monkeypatch.setattr(sys, "argv", [GKD, "--config", str(config), "--dry_run"])
    with pytest.raises(OpdAlignError, match="unknown key in the configuration: 'max_step'; did you mean --max_steps"):
        module.main()


class RecordingTrainer:
    """Records how it was constructed and called."""

    def __init__(self, **options):
        self.options, self.train_calls, self.saves, self.callbacks = options, [], 0, []
        self.reward_funcs = options.get("reward_funcs")

    def add_callback(self, callback):
        self.callbacks.append(callback)

    def train(self, **options):
        self.train_calls.append(options)

    def save_model(self):
        self.saves += 1


def recorded(recipe, monkeypatch, *flags):
    """The trainer that a recipe constructs from these flags."""
    module, made = load_recipe(recipe, monkeypatch), []
    name = next(name for name in vars(module) if name.endswith("Trainer"))
    monkeypatch.setattr(module, name, lambda **options: made.append(RecordingTrainer(**options)) or made[-1])
    if hasattr(module, "SDPOGate"):  # it is attached to SDPOTrainer only
        monkeypatch.setattr(module.SDPOGate, "attach", lambda gate, trainer: trainer.reward_funcs.index(gate.reward))
    if hasattr(module, "TeacherMix"):  # it follows callbacks of its own trainer only
        monkeypatch.setattr(module.TeacherMix, "follow", lambda mix, callback: None)
    monkeypatch.setattr(module, "AlignmentCallback", lambda *given, **options: SimpleNamespace(**CALLBACK))
    monkeypatch.setattr(sys, "argv", line(recipe, "--train_questions", 8, *flags))
    module.main()
    return made[0]


@quiet
@pytest.mark.parametrize("recipe", RECIPES)
def test_model_and_checkpoint_arguments_reach_the_trainer(recipe, monkeypatch, tmp_path):
    flags = ["--output_dir", tmp_path, "--attn_implementation", "eager", "--dtype", "bfloat16"]
    flags += ["--model_init_kwargs", '{"dtype": "float32", "use_cache": false}', "--resume_from_checkpoint", "there"]
    trainer = recorded(recipe, monkeypatch, *flags)
    assert trainer.options["args"].model_init_kwargs == {
        "revision": "main",
        "trust_remote_code": False,
        "attn_implementation": "eager",
        "dtype": "float32",
        "use_cache": False,
    }
    assert trainer.train_calls == [{"resume_from_checkpoint": "there"}]
    assert trainer.saves == 1
    if recipe in (GKD, DISTILLATION):
        teacher = trainer.options["args"].teacher_model_init_kwargs
        assert teacher == {"trust_remote_code": False, "attn_implementation": "eager", "dtype": "bfloat16"}
    elif recipe in ("grpo_distill_on_failures", MIX):
        teacher = trainer.options["teacher_model"]
        teacher = teacher.pool.first_model() if recipe == MIX else teacher
        assert teacher.config._attn_implementation == "eager"
        assert teacher.dtype == torch.bfloat16


@quiet
@pytest.mark.parametrize("recipe", [recipe for recipe in RECIPES if recipe != "self_distillation_contexts"])
def test_on_harm_adds_a_schedule(recipe, monkeypatch, tmp_path):
    monkeypatch.setattr(recipe_module, "AlignmentSchedule", lambda callback, **options: (callback, options))
    for flags, follow in (([], "alignment"), (["--follow", "pass_rate"], "pass_rate")):
        made = recorded(recipe, monkeypatch, "--output_dir", tmp_path, "--on_harm", "stop", *flags)
        callback, schedule = made.callbacks
        assert schedule == (callback, {"on_harm": "stop", "follow": follow})
    assert len(recorded(recipe, monkeypatch, "--output_dir", tmp_path).callbacks) == 1


@quiet
def test_the_mix_gets_its_arguments(monkeypatch, tmp_path):
    flags = ["--output_dir", tmp_path, "--teachers", "b=embedded:careless", "c=embedded:teacher", "a=embedded:student"]
    flags += ["--strategy", "expected_gain", "--floor", 0.1, "--no_live", "--one_at_a_time", "--seed", 3]
    flags += ["--kind", "changes"]
    trainer = recorded(MIX, monkeypatch, *flags)
    mix = trainer.options["teacher_model"]
    assert mix.names == ("b", "c", "a")
    assert (mix.strategy, mix.floor, mix.live, mix.pool.one_at_a_time, mix.seed) == (
        "expected_gain",
        0.1,
        False,
        True,
        3,
    )
    assert mix.kind == "kind"
    texts = [row["prompt"][-1]["content"] for row in trainer.options["train_dataset"]]
    assert trainer.options["train_dataset"]["kind"] == ["2" if "Then" in text else "1" for text in texts]


@quiet
def test_a_context_in_the_mix_gets_solutions_of_the_student(monkeypatch, tmp_path):
    flags = ["--output_dir", tmp_path, "--teachers", "big=embedded:teacher", "self=Self-1C", "--kind", "changes"]
    trainer = recorded(MIX, monkeypatch, *flags)
    assert [*trainer.options["teacher_model"].pool.contexts] == ["self"]
    rows = trainer.options["train_dataset"]
    assert sum(isinstance(row["correct_hint"], str) for row in rows) >= 2
    assert set(rows["kind"]) <= {"1", "2"}


@quiet
@pytest.mark.parametrize(
    ("recipe", "flags"),
    [
        (MIX, ["--teachers", "big=embedded:teacher", "self=self-1c"]),
        ("distillation_gates", ["--gate", "contrastive_contexts"]),
    ],
)
def test_the_student_writes_solutions_to_the_prompts_of_the_training(recipe, flags, monkeypatch, tmp_path):
    seen = []

    def sample(model, tokenizer, task, questions, **options):
        seen.append((model.dtype, model.config._attn_implementation, options))
        return {question.id: {"correct_hint": "Answer: 1", "wrong_hint": None} for question in questions}

    monkeypatch.setattr(recipe_module, "sample_hints", sample)
    flags = [*flags, "--chat_template_kwargs", '{"enable_thinking": false}', "--dtype", "bfloat16"]
    recorded(recipe, monkeypatch, "--output_dir", tmp_path, "--attn_implementation", "eager", *flags)
    options = {"max_tokens": 96, "template": {"enable_thinking": False}}
    assert seen == [(torch.bfloat16, "eager", options)]


@pytest.mark.parametrize(
    "given",
    [
        ["big=embedded:teacher", "self=SELF-1c"],
        {"big": "embedded:teacher", "self": "Self-1C"},
        "big=embedded:teacher",
    ],
)
def test_teachers_may_be_a_list_a_mapping_or_text(given, monkeypatch, tmp_path, capsys):
    expected = {"big": resolve_model("embedded:teacher"), "self": "Self-1C"}
    assert parse_teachers(given) == {name: expected[name] for name in (["big"] if isinstance(given, str) else expected)}
    config = yaml.safe_load(launch.configs(MIX)["cpu_tiny"].read_text()) | {"teachers": given}
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(config))
    monkeypatch.setattr(sys, "argv", [MIX, "--config", str(file), "--dry_run"])
    load_recipe(MIX, monkeypatch).main()
    assert "from big" in capsys.readouterr().out


def test_kinds_come_from_a_column_of_a_file(tmp_path):
    file = tmp_path / "questions.jsonl"
    rows = [{"question": f"1 + {n}?", "answer": str(1 + n), "subject": "odd" if n % 2 else "even"} for n in range(3)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    questions = QuestionArguments(train_file=str(file), held_out_file=str(file))
    assert questions.prompt_dataset(kind="subject")["kind"] == ["even", "odd", "even"]
    assert [question.fields["kind"] for question in questions.held_out("subject")] == ["even", "odd", "even"]
    assert "kind" not in questions.prompt_dataset().column_names
    with pytest.raises(OpdAlignError, match="has no column 'topic' for its kind"):
        questions.held_out("topic")


@quiet
def test_the_contrastive_gate_gets_hints_from_the_student(monkeypatch, tmp_path):
    flags = ["--output_dir", tmp_path, "--gate", "contrastive_contexts"]
    rows = recorded("distillation_gates", monkeypatch, *flags).options["train_dataset"]
    assert len(rows) == 8
    assert sum(isinstance(row["correct_hint"], str) and isinstance(row["wrong_hint"], str) for row in rows) >= 2


@quiet
def test_quantization_and_teacher_options_reach_the_trainer(monkeypatch, tmp_path):
    monkeypatch.setattr(recipe_module, "find_spec", lambda name: name)  # as if bitsandbytes were installed
    flags = ["--output_dir", tmp_path, "--load_in_4bit", "--use_peft"]
    for recipe in RECIPES:
        trainer = recorded(recipe, monkeypatch, *flags)
        assert trainer.options["args"].model_init_kwargs["quantization_config"].load_in_4bit
        assert "quantization_config" not in (getattr(trainer.options["args"], "teacher_model_init_kwargs", None) or {})
    flags = ["--output_dir", tmp_path, "--teacher_model_init_kwargs", '{"dtype": "float16"}']
    assert recorded(GKD, monkeypatch, *flags).options["args"].teacher_model_init_kwargs["dtype"] == "float16"
    assert recorded("grpo_distill_on_failures", monkeypatch, *flags).options["teacher_model"].dtype == torch.float16


@quiet
@pytest.mark.parametrize("size", ["1gpu", "8gpu_zero2", "8gpu_zero3"])
def test_gkd_uses_the_same_prompts_as_the_other_recipes(size):
    """With Qwen3's template: collator and callback write the prompts of a trainer that passes template arguments."""
    config = yaml.safe_load(launch.configs(GKD)[size].read_text())
    others = [yaml.safe_load(launch.configs(recipe)[size].read_text()) for recipe in RECIPES]
    assert {str(other["chat_template_kwargs"]) for other in others} == {"{'enable_thinking': False}"}
    arguments = config["chat_template_kwargs"]
    plain, configured = load_tokenizer("embedded:student"), load_tokenizer("embedded:student")
    qwen3 = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    plain.chat_template = configured.chat_template = qwen3
    configured = with_template_defaults(configured, arguments)
    rows = QuestionArguments(train_questions=4).conversation_dataset()
    batch = DataCollatorWithColumns(configured, max_length=512)(list(rows))
    for number, row in enumerate(rows):
        messages = row["messages"][:-1]
        wanted = plain.apply_chat_template(messages, add_generation_prompt=True, return_dict=False, **arguments)
        thinking = plain.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert plain.decode(wanted).endswith("<think>\n\n</think>\n\n")
        given = batch["prompts"][number][batch["prompt_attention_mask"][number] == 1].tolist()
        assert given == wanted
        assert list(Chat(configured).prompt(messages)) == wanted
        # Explicit arguments override the defaults.
        assert Chat(configured, thinking=True).prompt(messages) == tuple(thinking)
    # The reply of the data set starts where the student's completion would.
    first = batch["input_ids"][0][batch["labels"][0] != -100]
    assert plain.decode(first).startswith("Answer: ")


@pytest.mark.parametrize("size", LAUNCHED)
def test_accelerate_accepts_its_configurations(size):
    file = launch.folder() / "accelerate" / f"{size}.yaml"
    known = load_config_from_file(str(file))
    assert known.num_processes == (8 if size.startswith("8gpu") else 1)
    assert known.use_cpu == (size == "cpu_tiny")
    assert known.gpu_ids == ("0" if size == "1gpu" else None)
    stage = {"8gpu_zero2": 2, "8gpu_zero3": 3}.get(size)
    assert known.deepspeed_config.get("zero_stage") == stage


def test_a_recipe_can_be_launched_with_fsdp2(monkeypatch):
    """What accelerate's launcher hands to the processes makes an FSDP2 plugin whose checkpoints are whole."""
    command = launch.command(DISTILLATION, ["--config", "8gpu_zero2", "--accelerate", "8gpu_fsdp2"])
    assert Path(command[4]).name == "8gpu_fsdp2.yaml"
    args, _, mixed_precision = _validate_launch_command(launch_command_parser().parse_args(command[3:]))
    assert args.use_fsdp
    assert mixed_precision
    for name, value in prepare_multi_gpu_env(args).items():
        monkeypatch.setenv(name, value)
    plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2
    assert plugin.reshard_after_forward is True
    assert plugin.cpu_ram_efficient_loading is False, "teachers would be zero on all processes but the first"
    assert plugin.state_dict_type == StateDictType.FULL_STATE_DICT


def test_cuda_visible_devices_selects_the_gpu(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert "--gpu_ids" not in launch.command(GKD, ["--config", "1gpu"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    chosen = launch.command(GKD, ["--config", "1gpu"])
    assert chosen[5:7] == ["--gpu_ids", "3"]
    args = launch_command_parser().parse_args(chosen[3:])
    _, environment = prepare_simple_launcher_cmd_env(_validate_launch_command(args)[0])
    assert environment["CUDA_VISIBLE_DEVICES"] == "3"
    assert "--gpu_ids" not in launch.command(GKD, ["--config", "8gpu_zero3"])


def test_the_command_has_the_exit_code_of_the_recipe(tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = launch.command(GKD, ["--task", "arithmetics", "--output_dir", str(tmp_path)])
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("opd-align: there is no task 'arithmetics'")
    assert "Traceback" not in done.stderr


def test_the_command_selects_the_configurations():
    command = launch.command("gkd_incorrect_only", ["--max_steps", "3"])
    assert command[1:4] == ["-m", "opd_align.training.launch", "--config_file"]
    assert [Path(part).name for part in command[4:8]] == [
        "cpu_tiny.yaml", "gkd_incorrect_only.py", "--config", "cpu_tiny.yaml",
    ]  # fmt: skip
    assert command[8:] == ["--max_steps", "3"]
    large = launch.command("distillation_divergence", ["--config=8gpu_zero3", "--seed", "1"])
    assert large[4].endswith("accelerate/8gpu_zero3.yaml")
    assert large[-2:] == ["--seed", "1"]
    own = launch.command("gkd_incorrect_only", ["--config", str(launch.configs("gkd_incorrect_only")["1gpu"])])
    assert "--config_file" not in own
    elsewhere = launch.command(GKD, ["--accelerate", "8gpu_zero3"])
    assert elsewhere[4] == str(launch.accelerate_configs()["8gpu_zero3"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gkd_incorect_only",), "did you mean 'gkd_incorrect_only'"),
        (
            ("gkd_incorrect_only", ["--config", "2gpu"]),
            "or one of 1gpu, 8gpu_zero2, 8gpu_zero3, cpu_tiny",
        ),
        (("gkd_incorrect_only", ["--config"]), "--config requires a value"),
        (
            ("gkd_incorrect_only", ["--accelerate", "9gpu"]),
            "unknown accelerate configuration '9gpu'; use a YAML file or one",
        ),
    ],
)
def test_unknown_recipes_and_configurations_are_refused(arguments, message):
    with pytest.raises(OpdAlignError, match=message):
        launch.command(*arguments)


def test_the_command_line_lists_and_starts_recipes(capsys, monkeypatch):
    assert main(["train"]) == 0
    listed = capsys.readouterr().out
    assert all(recipe in listed for recipe in RECIPES)
    assert "embedded_models" not in listed
    started = []
    monkeypatch.setattr(
        subprocess, "run", lambda command: started.append(command) or subprocess.CompletedProcess([], 3)
    )
    assert main(["train", "gkd_incorrect_only", "--help"]) == 3
    assert started[0][-1] == "--help"
    assert shlex.join(started[0]) in capsys.readouterr().out
    assert main(["train", "nothing"]) == 2


SCHEDULED = {
    "distillation_gates": "rollback",
    "distillation_teacher_mix": "rollback",
    "grpo_distill_on_failures": "zero",
}


@pytest.mark.training
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_trains_on_a_cpu(recipe, tmp_path):
    short = {"max_steps": 3, "every_n_steps": 2, "held_out_questions": 2, "train_questions": 64, "logging_steps": 1}
    if recipe in SCHEDULED:
        short |= {"on_harm": SCHEDULED[recipe]}
    short |= {"per_device_train_batch_size": 8, "output_dir": tmp_path, "max_overhead": 1.0, "report_to": "none"}
    flags = [str(part) for name, value in short.items() for part in (f"--{name}", value)]
    environment = os.environ | {
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(launch.command(recipe, flags), capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "model.safetensors").is_file()
    rows = [json.loads(line) for line in (tmp_path / "opd_align" / "history.jsonl").read_text().splitlines()]
    assert [(row["step"], row["error"]) for row in rows] == [(0, None), (2, None)]
    logged = [json.loads(line) for line in (tmp_path / "opd_align" / "training.jsonl").read_text().splitlines()]
    gated = [row for row in logged if "gate/sequences_kept" in row]
    assert len(gated) >= 2
    assert all(0 <= row["gate/sequences_kept"] <= 1 for row in gated)
    strengths = [row["schedule/strength"] for row in logged if "schedule/strength" in row]
    assert len(strengths) == (len(gated) if recipe in SCHEDULED else 0)
    if recipe == MIX:
        weights = {key: row[key] for row in logged for key in row if key.startswith("mix/")}
        assert sorted(weights) == ["mix/careful/all/weight", "mix/careless/all/weight"]


@quiet
@pytest.mark.training
def test_a_recipe_resumes_from_a_checkpoint(monkeypatch, tmp_path):
    module = load_recipe(DISTILLATION, monkeypatch)
    models, steps = [], []

    class Counting(TrainerCallback):
        latest, settings, teachers = CALLBACK["latest"], CALLBACK["settings"], CALLBACK["teachers"]

        def __init__(self, trainer, *given, **options):
            models.append(trainer.model)
            steps.append([])

        def on_step_end(self, args, state, control, **kwargs):
            steps[-1].append(state.global_step)

    monkeypatch.setattr(module, "AlignmentCallback", Counting)
    short = ["--output_dir", tmp_path, "--train_questions", 32, "--per_device_train_batch_size", 4]
    short += ["--max_completion_length", 8, "--save_strategy", "steps", "--save_steps", 1, "--logging_steps", 1]
    for more in (["--max_steps", 2], ["--max_steps", 3, "--resume_from_checkpoint", tmp_path / "checkpoint-2"]):
        monkeypatch.setattr(sys, "argv", line(DISTILLATION, *short, "--attn_implementation", "eager", *more))
        module.main()
    assert steps == [[1, 2], [3]]
    assert {model.config._attn_implementation for model in models} == {"eager"}
