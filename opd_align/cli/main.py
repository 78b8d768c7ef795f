"""The `opd-align` command: arguments, help texts, exit codes.

What a command does is in `commands`. Heavy libraries are imported when a command runs, so that `--help` is fast; names
in help texts come from the registries they belong to.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

from opd_align.backends.base import BACKENDS
from opd_align.cli import commands, editor, watching, workspace
from opd_align.cli.completion import SHELLS
from opd_align.cli.export import export
from opd_align.cli.monitoring import DASHBOARD, add_dashboard_arguments, dashboard
from opd_align.cli.suggestions import Parser
from opd_align.cli.terminal import complain, print_in_any_encoding
from opd_align.core.objectives import OBJECTIVES
from opd_align.runs.filesystem import AnyPath, as_path
from opd_align.settings import Allocation, Budget, Method
from opd_align.tasks import TASKS
from opd_align.types import OpdAlignError

MODEL_LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "accelerate")
"""Optional dependencies that language models need; the base install works without them."""

DECIDED = 0.95
"""Probability at which `--until-decided` stops; that of `core.decision`, which --help does not import."""

ABOUT = """\
Measures, token by token, whether a teacher's distillation update points toward correct answers.

  opd-align analyze                                    run on the embedded models; takes 1-2 minutes on a CPU
  opd-align analyze --config boolq_qwen3_0.6b          the paper's settings with Qwen3-0.6B as student
  opd-align screen --student MODEL --task boolq ...    pass rates per context, to choose contexts and questions
  opd-align doctor --config study.yaml                 check a study before it is started
  opd-align report runs/first                          tables and HTML report of a finished run
  opd-align compare runs/first runs/second             several runs side by side
  opd-align export runs/first --preferences FILE       pivotal decisions, also as preference pairs for DPO
  opd-align train gkd_incorrect_only                   start a training recipe; without a name, list all recipes
  opd-align dashboard OUTPUT_DIR                       monitor a training that uses AlignmentCallback
  opd-align watch OUTPUT_DIR                           evaluate the checkpoints of a training from outside
  opd-align workspace OUTPUT_DIR --project NAME        make a W&B workspace for a training
  opd-align merge runs/first runs/second --out DIR     merge runs on different questions into one

Run `opd-align COMMAND --help` for the options of a command.
"""

ANALYZE = """\
Samples rollouts from the student, samples more from selected tokens of a few of them, estimates the success
probability of each candidate next token, and compares the ideal update with the update of each teacher's loss. Prints
tables and writes an HTML report. Finished batches are saved to disk: if interrupted, run the same command to resume.

  opd-align analyze
  opd-align analyze --student Qwen/Qwen3-0.6B --task boolq --limit 8 --teachers Self-1C,Self-1C1W,Qwen/Qwen3-4B
  opd-align analyze --config boolq_qwen3_0.6b --set student.backend=vllm --out runs/boolq
  opd-align analyze --student Qwen/Qwen3-0.6B --task gsm8k --teachers Self-1C,Self-3C --quick --until-decided
  opd-align analyze --dry-run                                                estimated rollouts, time and cost
  opd-align analyze --config aime2025_qwen3_1.7b --dry-run --hardware 8x80   does it fit, and what goes where?
  opd-align analyze --config boolq_qwen3_0.6b --gpus 0-7 --out runs/boolq    eight GPUs of this machine
  opd-align analyze --estimator pooled --reuse runs/first --out runs/pooled  same rollouts, another estimator
  opd-align analyze --student exact --worlds 8                               synthetic worlds with known answers
  opd-align analyze --rollouts rollouts.jsonl                                rollouts that another program recorded
  opd-align analyze --config boolq_qwen3_0.6b --engine ray --ray-address auto --out s3://bucket/boolq   on a cluster

Teachers are model names, or contexts: the student itself with demonstrations added to its prompt. In a context's name,
C counts correct and W wrong demonstrations, Sum means summarised: Self-1C1W has one correct and one wrong response.
"""

SCREEN = """\
Samples the student on every question with the plain prompt and with each context (one correct demonstration, one
correct and one wrong, ...), and prints pass rates by context and difficulty. Use it to choose contexts and questions
before an analysis. If interrupted, run the same command to resume.

  opd-align screen --student HuggingFaceTB/SmolLM2-135M-Instruct --task boolq --limit 20 --out runs/screen
  opd-align screen --student model.gguf --task gsm8k --data gsm8k.jsonl --teachers Self-1C,Self-1C1W --out runs/screen
  opd-align screen --config boolq.yaml --set demonstrations.trials=20 --out runs/screen
"""

PROMPT = """\
Prints the prompts of the student and of every teacher for each question, special tokens included. Demonstrations are
taken from a screening (--demonstrations-from) or shown as placeholders.

  opd-align show-prompt --student Qwen/Qwen3-0.6B --task mmlu --limit 1 --teachers Self-1C,Self-1C1W
"""

DOCTOR = """\
Checks a study before it is paid for, on a few completions of a few questions: chat templates and end tokens, verifier,
temperature, vocabulary, truncation and pass rate, determinism, demonstrations, precision, and whether servers agree
with local weights. Takes the options of analyze that define a study. Prints one line per finding: OK, WARN, FAIL, or
SKIP for what could not be checked, and what to do. The exit code is 1 if a check failed. Nothing is saved.

  opd-align doctor
  opd-align doctor --config boolq_qwen3_0.6b --set student.backend=vllm
  opd-align doctor --config study.yaml --strict --sample-questions 8      in CI: warnings fail too

For a trainer in a script: opd_align.training.check_trainer_setup(trainer, ...).
"""

REPORT = """\
Prints the tables of a finished run directory and optionally writes them to files. Needs no model.

  opd-align report runs/first
  opd-align report runs/first --html report.html --tables tables/       Markdown, LaTeX and CSV
"""

MERGE = """\
Merges finished runs that have the same student, teachers, grader and settings but different questions. The result is
identical to a single run on all questions; nothing is sampled again.

  opd-align analyze --config boolq.yaml --limit 100 --out runs/first                                  machine 1
  opd-align analyze --config boolq.yaml --limit 100 --set questions.offset=100 --out runs/second      machine 2
  opd-align merge runs/first runs/second --out runs/boolq
"""

COMPARE = """\
Prints the tables of several finished runs side by side, for example different students, budgets or estimators.

  opd-align compare runs/backup runs/pooled
"""

EXPORT = """\
Writes the pivotal decisions of a finished run: positions where the best and the worst next token differ in success, as
far as the rollouts can tell. --pivotal: one JSON object per decision. --preferences: pairs of a correct response that
takes the better token and an incorrect one that takes the worse, in the format of TRL's DPOTrainer.

  opd-align export runs/first --pivotal pivotal.jsonl --preferences preferences.jsonl
  opd-align export runs/first --preferences preferences.jsonl --min-difference 0.2 --pairs-per-decision 4
"""

COMPLETION = """\
Prints a script that completes commands, flags and names.

  opd-align completion bash > ~/.local/share/bash-completion/completions/opd-align
  opd-align completion zsh  > ~/.zfunc/_opd-align          with fpath+=~/.zfunc before compinit in ~/.zshrc
  opd-align completion fish > ~/.config/fish/completions/opd-align.fish
"""

SCHEMA = """\
Prints the JSON schema of the configuration. An editor with a YAML language server then completes keys, shows what they
mean and marks mistakes, in files that begin with: # yaml-language-server: $schema=opd-align.schema.json

  opd-align schema > opd-align.schema.json
"""

TRAIN = """\
Starts a training recipe with `accelerate launch` and prints the command. Without a recipe, lists all recipes.

  opd-align train
  opd-align train gkd_incorrect_only                                          the embedded models, on a CPU
  opd-align train distillation_divergence --config 8gpu_zero2 --max_steps 200
  opd-align train grpo_distill_on_failures --config mine.yaml --accelerate my_machines.yaml
  opd-align train gkd_incorrect_only --help                                   all options of the recipe
"""

WATCH = """\
Evaluates the checkpoints of a training as they appear, in this process: on another GPU, on another machine that sees
OUTPUT_DIR, or in a Ray actor. The training never waits for it. Writes what AlignmentCallback writes: run directories
and history.jsonl in OUTPUT_DIR/opd_align (opd-align dashboard OUTPUT_DIR), and rows on W&B. Can be killed and started
again at any time; nothing is evaluated twice. Ends with the training, or as the options below say, or with Ctrl-C.

A training with AlignmentCallback(..., where="outside") leaves snapshots and says what to evaluate:

  opd-align watch runs/gkd --device cuda:1

Any other that writes Hugging Face checkpoints (verl, slime, prime-rl, ms-swift, your own loop) needs the options of
analyze that define a study; its student is replaced by each checkpoint:

  opd-align watch runs/verl --task gsm8k --limit 32 --teachers Self-1C,Qwen/Qwen3-4B --until-step 400
  opd-align watch runs/own --config study.yaml --checkpoints 'step_*/hf' --idle-timeout 3600
  opd-align watch runs/own --config study.yaml --once                       what is there, then exit

A training without the callback is over when the file OUTPUT_DIR/opd_align/training_finished exists.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `opd-align`; returns the exit code."""
    print_in_any_encoding()
    parser = _parser()
    args = parser.parse_args(argv)
    if args.version:
        from importlib.metadata import version

        print(f"opd-align {version('opd-align')}")
        return 0
    if args.command is None:
        parser.print_help()
        return 0
    # Libraries fill log files with their own progress bars; a training's are kept.
    if args.command != "train" and (getattr(args, "quiet", False) or not sys.stderr.isatty()):
        os.environ.setdefault("TQDM_DISABLE", "1")
    try:
        with _warnings_for_users():
            code = int(args.run(args))
        print(end="", flush=True)
        return code
    except ModuleNotFoundError as error:
        if error.name not in MODEL_LIBRARIES:
            raise
        print(f"opd-align: language models need {error.name}: pip install 'opd-align[hf,tasks]'", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader closed the pipe, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OpdAlignError as error:
        complain(error)
        return 2
    except KeyboardInterrupt:
        out = getattr(args, "out", None)
        hint = f"; finished work is saved in {out}, run the same command to resume" if out else ""
        complain(f"interrupted{hint}")
        return 130


@contextmanager
def _warnings_for_users() -> Iterator[None]:
    """Prints this package's warnings (skipped questions, pending actors) as plain lines without source locations."""
    with warnings.catch_warnings():
        default_showwarning = warnings.showwarning

        def show(message: Any, category: Any, *location: Any, **options: Any) -> None:
            if category.__module__.startswith("opd_align."):
                complain(message)
            else:
                default_showwarning(message, category, *location, **options)

        warnings.showwarning = show
        yield


def _parser() -> argparse.ArgumentParser:
    parser = Parser("opd-align", description=ABOUT, formatter_class=_Formatter)
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    parsers = parser.add_subparsers(dest="command", metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int], help: str, text: str) -> argparse.ArgumentParser:
        added = parsers.add_parser(name, help=help, description=text, formatter_class=_Formatter)
        added.set_defaults(run=run)
        return added

    analyze = command("analyze", commands.analyze, "measure alignment, token by token", ANALYZE)
    _add_study_arguments(analyze)
    _add_analysis_arguments(analyze)
    _add_output_arguments(analyze)
    screen = command("screen", commands.screen, "pass rates by context and difficulty", SCREEN)
    _add_study_arguments(screen)
    screen.add_argument(
        "--out", type=_path, metavar="DIR", required=True, help="run directory; resumed if it already exists"
    )
    screen.add_argument("--quiet", "-q", action="store_true", help="no progress")
    prompt = command("show-prompt", commands.show_prompt, "print the prompts of student and teachers", PROMPT)
    _add_study_arguments(prompt)
    prompt.add_argument("--demonstrations-from", type=_path, metavar="DIR", help="run directory of a screening")
    doctor = command("doctor", commands.doctor, "check a study before it is started", DOCTOR)
    _add_study_arguments(doctor)
    _add_settings_arguments(doctor)
    doctor.add_argument(
        "--sample-questions", type=int, default=4, metavar="N", help="questions to sample (default: %(default)s)"
    )
    doctor.add_argument(
        "--sample-rollouts", type=int, default=8, metavar="N", help="completions per question (default: %(default)s)"
    )
    doctor.add_argument("--strict", action="store_true", help="exit with 1 for warnings too")
    report = command("report", commands.report, "tables and HTML report of a run directory", REPORT)
    report.add_argument("directory", type=_path, metavar="DIR", help="run directory (the --out of analyze or screen)")
    report.add_argument("--html", type=_path, metavar="FILE", help="write the HTML report to FILE")
    report.add_argument("--tables", type=_path, metavar="FOLDER", help="write the tables as Markdown, LaTeX and CSV")
    _add_output_arguments(report)
    merge = command("merge", commands.merge, "merge runs on different questions into one", MERGE)
    merge.add_argument("directories", type=_path, nargs="+", metavar="DIR", help="finished run directories")
    merge.add_argument("--out", type=_path, metavar="DIR", required=True, help="run directory to create")
    _add_output_arguments(merge)
    compare = command("compare", commands.compare, "several runs side by side", COMPARE)
    compare.add_argument("directories", type=_path, nargs="+", metavar="DIR", help="finished run directories")
    compare.add_argument("--tables", type=_path, metavar="FOLDER", help="write the tables as Markdown, LaTeX and CSV")
    _add_export_arguments(command("export", export, "pivotal decisions as JSON lines and preference pairs", EXPORT))
    train = command("train", commands.train, "start a training recipe with a gated distillation loss", TRAIN)
    train.add_argument("recipe", nargs="?", metavar="RECIPE", help="name of the recipe; without it, list all")
    train.add_argument(
        "flags", nargs=argparse.REMAINDER, metavar="...", help="--config NAME or FILE, and options of the recipe"
    )
    add_dashboard_arguments(command("dashboard", dashboard, "monitor a training with AlignmentCallback", DASHBOARD))
    watch = command("watch", watching.watch, "evaluate the checkpoints of a training from outside", WATCH)
    watch.add_argument("directory", type=Path, metavar="OUTPUT_DIR", help="where the training writes its checkpoints")
    watching.add_arguments(watch)
    _add_study_arguments(watch)
    _add_settings_arguments(watch)
    in_wandb = command("workspace", workspace.workspace, "make a W&B workspace for a training", workspace.DESCRIPTION)
    workspace.add_arguments(in_wandb)
    completion = command("completion", editor.completion, "completion script of a shell", COMPLETION)
    completion.add_argument("shell", choices=SHELLS)
    completion.set_defaults(parser=parser)
    command("schema", editor.schema, "JSON schema of the configuration, for editors", SCHEMA)
    return parser


def _add_output_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--verbose", "-v", action="store_true", help="print all tables, not only the conclusion")
    group.add_argument("--quiet", "-q", action="store_true", help="print the recommendation only, and no progress")


def _add_export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=_path, metavar="DIR", help="run directory (the --out of analyze)")
    parser.add_argument("--pivotal", type=_path, metavar="FILE", help="write the decisions as JSON lines")
    parser.add_argument("--preferences", type=_path, metavar="FILE", help="write preference pairs as JSON lines")
    parser.add_argument(
        "--min-difference", type=float, default=0.1, metavar="X",
        help="smallest difference in success between the best and the worst token (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--confidence", type=float, default=0.95, metavar="P",
        help="smallest probability that this difference is positive (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--pairs-per-decision", type=int, default=1, metavar="N", help="preference pairs (default: %(default)s)"
    )
    parser.add_argument(
        "--tokenizer", metavar="MODEL", help="the student's tokenizer (default: the one that the run names)"
    )


def _add_study_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that define a study; each sets a key of the configuration."""
    group = parser.add_argument_group("study")
    group.add_argument("--config", metavar="FILE", help="YAML file, or the name of a configuration of the package")
    group.add_argument(
        "--student", metavar="MODEL", help="folder, .gguf file, Hub name, embedded:student, or exact (synthetic)"
    )
    group.add_argument("--teachers", metavar="LIST", help="contexts (Self-1C, ...) and models, comma-separated")
    group.add_argument("--task", metavar="NAME", help=f"one of {_listed(TASKS)}")
    group.add_argument("--data", metavar="FILE", help="read questions from a file instead of the Hub")
    group.add_argument("--limit", type=int, metavar="N", help="use at most N questions")
    group.add_argument("--questions-from", metavar="DIR", help="use the questions of a screening, selected by --bins")
    group.add_argument("--bins", metavar="LIST", help="difficulty bins of the screening (default: medium,hard)")
    group.add_argument("--seed", type=int, metavar="N", help="random seed")
    group.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        help="set any key of the configuration, e.g. budget.initial=100; repeatable",
    )  # fmt: skip


def _add_analysis_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=_path, metavar="DIR", help="run directory, local or a URL such as s3://... (default: under runs/)"
    )
    group = _add_settings_arguments(parser)
    group.add_argument(
        "--quick", action="store_true",
        help="a small budget: 8 questions, 60 initial and 400 targeted rollouts each; other options take precedence",
    )  # fmt: skip
    group.add_argument(
        "--until-decided", type=float, nargs="?", const=DECIDED, metavar="P",
        help=f"add questions until the recommendation has probability P (default: {DECIDED:g}), starting with --limit",
    )  # fmt: skip
    group.add_argument(
        "--max-questions", type=int, metavar="N",
        help="with --until-decided: stop at N questions even if nothing is decided (default: 100)",
    )  # fmt: skip
    group.add_argument("--workers", type=int, metavar="N", help="questions processed concurrently (default: 1)")
    group.add_argument("--reuse", type=_path, metavar="DIR", help="reuse matching rollouts of another run directory")
    group.add_argument(
        "--rollouts", metavar="FILE",
        help="analyze the rollouts in a file (docs/replay.md) instead of sampling; with --student and --teachers, "
        "those models compute the probabilities, otherwise they are in the file",
    )  # fmt: skip
    cost = parser.add_argument_group("cost estimate")
    cost.add_argument(
        "--dry-run", action="store_true",
        help="print the plan of memory and placement, sample a little to measure speed, print the cost, and exit",
    )  # fmt: skip
    cost.add_argument(
        "--hardware", metavar="NxGB",
        help="plan for other GPUs than those of this machine, such as 8x80: memory and placement, no sampling",
    )  # fmt: skip
    cost.add_argument("--tokens-per-second", type=float, metavar="N", help="speed of one GPU (default: measured)")
    cost.add_argument("--dollars-per-gpu-hour", type=float, metavar="N", help="price of one GPU hour")
    cost.add_argument("--calibrate-from", type=_path, metavar="DIR", help="estimate from a small finished run")
    machine = parser.add_argument_group("several processes on this machine")
    machine.add_argument(
        "--gpus", metavar="LIST", help="GPUs to use, such as 0-7 or 0,2,5; each process has as many as the study needs"
    )
    machine.add_argument("--processes", type=int, metavar="N", help="number of processes (default: one per GPU needed)")
    cluster = parser.add_argument_group("Ray cluster (--engine ray; --workers defaults to as many as fit)")
    cluster.add_argument(
        "--engine", choices=("local", "ray"), default="local", help="run in this process (default) or on Ray"
    )
    cluster.add_argument(
        "--ray-address", metavar="ADDRESS", help="auto for a running cluster (default: start a local one)"
    )
    cluster.add_argument("--gpus-per-worker", type=float, metavar="N", help="default: 1 if the cluster has GPUs")
    cluster.add_argument(
        "--teacher-actors", metavar="LIST", help="teachers to load in separate actors: NAME or NAME=GPUS (at most 1)"
    )
    world = parser.add_argument_group("exact worlds (--student exact)")
    world.add_argument("--worlds", type=int, default=6, metavar="N", help="number of worlds (default: %(default)s)")
    world.add_argument(
        "--length", type=int, default=120, metavar="N", help="typical completion length (default: %(default)s)"
    )
    world.add_argument(
        "--forks", type=float, default=1 / 3, metavar="X", help="share of positions that fork (default: 0.33)"
    )
    world.add_argument(
        "--stakes",
        type=float,
        default=1.0,
        metavar="X",
        help="how strongly forks affect success (default: %(default)s)",
    )


def _add_settings_arguments(parser: argparse.ArgumentParser) -> Any:
    """Options of an analysis that set keys of the configuration; returns their group."""
    group = parser.add_argument_group("analysis (defaults come from the configuration)")
    group.add_argument("--initial", type=int, metavar="G", help="initial rollouts per question")
    group.add_argument("--targeted", type=int, metavar="N", help="maximum number of targeted rollouts per question")
    group.add_argument(
        "--seconds", type=float, metavar="N", help="time limit in seconds for the targeted rollouts of a question"
    )
    allocation = f"{_listed(Allocation)} (default: {Budget.allocation}; paper with --rollouts)"
    group.add_argument("--allocation", metavar="NAME", help=f"how to place targeted rollouts: {allocation}")
    group.add_argument("--estimator", metavar="NAME", help=f"success probability estimator: {_listed(Method)}")
    group.add_argument(
        "--objectives", metavar="LIST",
        help=f"comma-separated: {', '.join(objective.name for objective in OBJECTIVES)}; jsd(0.3) for another beta",
    )  # fmt: skip
    group.add_argument(
        "--n-sig", type=float, metavar="N", help="minimum visits of a candidate token (estimators direct and pooled)"
    )
    group.add_argument("--backend", metavar="NAME", help=f"sampling backend: {_listed(BACKENDS)}")
    group.add_argument("--batch", type=int, metavar="N", help="rollouts per sampling request")
    loading = parser.add_argument_group("loading the student (other models: keys `load` of the configuration)")
    loading.add_argument("--revision", metavar="NAME", help="branch, tag or commit on the Hub")
    loading.add_argument("--attn-implementation", metavar="NAME", help="attention of transformers, such as sdpa")
    loading.add_argument("--device-map", metavar="NAME", help="divide the weights over GPUs, such as auto")
    loading.add_argument("--tensor-parallel-size", type=int, metavar="N", help="GPUs of the vLLM engine")
    loading.add_argument("--gpu-memory-utilization", type=float, metavar="X", help="share of a GPU for the vLLM engine")
    loading.add_argument("--max-model-len", type=int, metavar="N", help="longest sequence of the vLLM engine")
    return group


def _listed(names: Any) -> str:
    """Names of a registry or of a `Literal` type, as a help text lists them."""
    known: Iterable[str] = names if isinstance(names, dict) else get_args(names)
    return ", ".join(known)


def _path(text: str) -> AnyPath:
    try:
        return as_path(text)
    except OpdAlignError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=100)
