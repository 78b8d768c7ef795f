"""The command line: a thin door to the engine.

Heavy imports wait until a command runs, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opd_align.cli import commands
from opd_align.runs.filesystem import as_path

if TYPE_CHECKING:
    from opd_align.runs.filesystem import AnyPath

MODELS = ("torch", "transformers", "tokenizers", "safetensors", "accelerate")
"""What a language model needs and the plain package does without."""

ABOUT = """\
At each token of a student's reasoning, does the teacher's distillation update point toward success?

  opd-align analyze                                    the models that ship with the package; a minute or two
  opd-align analyze --config boolq_qwen3_0.6b          the paper's settings on a real student
  opd-align screen --student MODEL --task boolq ...    which contexts help, and which questions are worth it
  opd-align report runs/first                          tables and report of a finished run
  opd-align compare runs/first runs/second             several runs side by side
  opd-align train gkd_incorrect_only                   a recipe that acts on it; without a name, all of them
  opd-align dashboard OUTPUT_DIR                       watch a training that has the callback
  opd-align merge runs/first runs/second --out DIR     runs of several machines as one
"""

ANALYZE = """\
Samples rollouts, grows a generation tree around a few of them, estimates the success probability of each next
token, and compares the ideal update with the one each teacher's loss would make. Ends in tables and an HTML report.
Every finished batch is on disk: interrupted, the same command goes on where it was left.

  opd-align analyze
  opd-align analyze --student Qwen/Qwen3-0.6B --task boolq --limit 8 --teachers Self-1C,Self-1C1W,Qwen/Qwen3-4B
  opd-align analyze --config boolq_qwen3_0.6b --set student.backend=vllm --out runs/boolq
  opd-align analyze --estimator pooled --reuse runs/first --out runs/pooled      same rollouts, other counting
  opd-align analyze --dry-run                                                    the plan, and what it will cost
  opd-align analyze --student exact --worlds 8                                   worlds whose truth is known
  opd-align analyze --config boolq_qwen3_0.6b --engine ray --ray-address auto --out s3://bucket/boolq   on a cluster
"""

SCREEN = """\
Samples every question under the plain prompt and under each context (a correct demonstration, a correct and a wrong
one, ...), and tables pass rates by context and difficulty. Interrupted, the same command goes on.

  opd-align screen --student HuggingFaceTB/SmolLM2-135M-Instruct --task boolq --limit 20 --out runs/screen
  opd-align screen --student model.gguf --task gsm8k --data gsm8k.jsonl --teachers Self-1C,Self-1C1W --out runs/screen
  opd-align screen --config boolq.yaml --set demonstrations.trials=20 --out runs/screen
"""

PROMPT = """\
Prints what the student and every teacher read for a question, special tokens included. Demonstrations come from a
screening (--demonstrations-from), or are shown as placeholders.

  opd-align show-prompt --student Qwen/Qwen3-0.6B --task mmlu --limit 1 --teachers Self-1C,Self-1C1W
"""

REPORT = """\
Prints the tables of a finished run directory, and writes them anew where asked. No model is needed.

  opd-align report runs/first
  opd-align report runs/first --html report.html --tables tables/       Markdown, LaTeX and CSV
"""

MERGE = """\
Joins finished runs that share student, teachers, grader and settings, and differ in their questions: what one run on
all questions would have made. Nothing is sampled again.

  opd-align analyze --config boolq.yaml --limit 100 --out runs/first                                  one machine
  opd-align analyze --config boolq.yaml --limit 100 --set questions.offset=100 --out runs/second      another
  opd-align merge runs/first runs/second --out runs/boolq
"""

COMPARE = """\
Prints the tables of several finished runs side by side: other students, other budgets, other estimators.

  opd-align compare runs/backup runs/pooled
"""

TRAIN = """\
Starts a recipe through `accelerate launch`, and says the command. Without a recipe, lists them.

  opd-align train
  opd-align train gkd_incorrect_only                                          the models that ship, on a CPU
  opd-align train distillation_divergence --config 8gpu_zero3 --max_steps 200
  opd-align train grpo_distill_on_failures --config mine.yaml --accelerate my_machines.yaml
  opd-align train gkd_incorrect_only --help                                   every flag of the recipe
"""

DASHBOARD = """\
Shows a training that runs with AlignmentCallback, or did: alignment, oracle, filter, pass rate and cost over its steps,
and the tokens of its rollouts. OUTPUT_DIR is the trainer's output_dir. Writes the page to a file that opens anywhere,
serves it to this machine only, and follows the training until Ctrl-C.

  opd-align dashboard runs/gkd
  opd-align dashboard runs/gkd --port 8765        on another machine: ssh -L 8765:127.0.0.1:8765 HOST, then open the
                                                  printed address at home
  opd-align dashboard runs/gkd --once --out training.html                    only the file
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `opd-align`; returns the exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.version:
        from importlib.metadata import version

        print(f"opd-align {version('opd-align')}")
        return 0
    if args.command is None:
        parser.print_help()
        return 0
    from opd_align.types import OpdAlignError

    try:
        with _spoken_warnings():
            code = int(args.run(args))
        print(end="", flush=True)
        return code
    except ModuleNotFoundError as error:
        if error.name not in MODELS:
            raise
        print(f"opd-align: language models need {error.name}: pip install 'opd-align[hf,tasks]'", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever read along has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OpdAlignError as error:
        print(f"opd-align: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        out = getattr(args, "out", None)
        hint = f"; what is finished is in {out}, and the same command goes on from there" if out else ""
        print(f"opd-align: interrupted{hint}", file=sys.stderr)
        return 130


@contextmanager
def _spoken_warnings() -> Iterator[None]:
    """What was left out or set aside, or waits, is news for the user, not for the developer."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Any, category: Any, *as_path: Any, **options: Any) -> None:
            if category.__module__.startswith("opd_align."):
                print(f"opd-align: {message}", file=sys.stderr)
            else:
                usual(message, category, *as_path, **options)

        warnings.showwarning = show
        yield


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("opd-align", description=ABOUT, formatter_class=_Formatter)
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    parsers = parser.add_subparsers(dest="command", metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int], help: str, text: str) -> argparse.ArgumentParser:
        added = parsers.add_parser(name, help=help, description=text, formatter_class=_Formatter)
        added.set_defaults(run=run)
        return added

    analyze = command("analyze", commands.analyze, "measure alignment, token by token", ANALYZE)
    _study_arguments(analyze)
    work = analyze.add_argument_group("the work (defaults are the configuration's)")
    work.add_argument("--initial", type=int, metavar="G", help="initial rollouts a question")
    work.add_argument("--targeted", type=int, metavar="N", help="at most N targeted rollouts a question")
    work.add_argument("--seconds", type=float, help="stop enriching a question after this time")
    work.add_argument("--allocation", metavar="NAME", help="paper or adaptive")
    work.add_argument("--estimator", metavar="NAME", help="backup, direct or pooled")
    work.add_argument("--objectives", metavar="LIST", help="reverse_kl, forward_kl, jsd(0.5), minillm, dr_grpo, ...")
    work.add_argument("--n-sig", type=float, metavar="N", help="effective visits a child needs")
    work.add_argument("--backend", metavar="NAME", help="who samples: hf, vllm or server")
    work.add_argument("--batch", type=int, metavar="N", help="rollouts asked for at a time")
    work.add_argument("--workers", type=int, metavar="N", help="questions worked on at a time (default: 1)")
    work.add_argument(
        "--reuse", type=_place, metavar="DIR", help="take rollouts from another run where they are the same"
    )
    cost = analyze.add_argument_group("the plan")
    cost.add_argument("--dry-run", action="store_true", help="print the plan, sample a little to time it, and stop")
    cost.add_argument("--gpus", type=int, metavar="N", help="how many share the work (default: 1)")
    cost.add_argument("--tokens-per-second", type=float, metavar="N", help="of one GPU (default: measured)")
    cost.add_argument("--dollars-per-gpu-hour", type=float, metavar="N", help="for the price")
    cost.add_argument("--calibrate-from", type=_place, metavar="DIR", help="a small finished run to predict from")
    many = analyze.add_argument_group("on a cluster (--engine ray; --workers are as many as there is room for)")
    many.add_argument(
        "--engine", choices=("local", "ray"), default="local", help="who does the work: this process, or Ray"
    )
    many.add_argument("--ray-address", metavar="ADDRESS", help="auto for a running cluster; default: none")
    many.add_argument("--gpus-per-worker", type=float, metavar="N", help="default: 1 where the cluster has GPUs")
    many.add_argument(
        "--apart", metavar="LIST", help="teachers with actors of their own, NAME or NAME=GPUS (at most 1)"
    )
    world = analyze.add_argument_group("exact worlds (--student exact)")
    world.add_argument("--worlds", type=int, default=6, metavar="N", help="how many (default: %(default)s)")
    world.add_argument("--length", type=int, default=120, help="typical completion length (default: %(default)s)")
    world.add_argument("--forks", type=float, default=1 / 3, help="share of forking positions (default: 0.33)")
    world.add_argument("--stakes", type=float, default=1.0, help="how much forks matter (default: %(default)s)")
    analyze.add_argument(
        "--out", type=_place, metavar="DIR", help="run directory, or an address such as s3://... (default: under runs/)"
    )

    screen = command("screen", commands.screen, "pass rates by context and difficulty", SCREEN)
    _study_arguments(screen)
    screen.add_argument(
        "--out", type=_place, metavar="DIR", required=True, help="run directory; continued if it is there"
    )
    prompt = command("show-prompt", commands.show_prompt, "what student and teachers read", PROMPT)
    _study_arguments(prompt)
    prompt.add_argument("--demonstrations-from", type=_place, metavar="DIR", help="a finished screening")
    report = command("report", commands.report, "tables and report of a run directory", REPORT)
    report.add_argument("directory", type=_place, metavar="DIR", help="what was given to analyze --out")
    report.add_argument("--html", type=_place, metavar="FILE", help="write the report")
    report.add_argument("--tables", type=_place, metavar="FOLDER", help="write the tables as Markdown, LaTeX and CSV")
    merge = command("merge", commands.merge, "runs of several machines as one", MERGE)
    merge.add_argument("directories", type=_place, nargs="+", metavar="DIR", help="finished runs of other questions")
    merge.add_argument("--out", type=_place, metavar="DIR", required=True, help="the run directory to make")
    compare = command("compare", commands.compare, "several runs side by side", COMPARE)
    compare.add_argument("directories", type=_place, nargs="+", metavar="DIR", help="finished run directories")
    compare.add_argument("--tables", type=_place, metavar="FOLDER", help="write the tables as Markdown, LaTeX and CSV")
    train = command("train", commands.train, "start a recipe that distils through a gate", TRAIN)
    train.add_argument("recipe", nargs="?", metavar="RECIPE", help="its name")
    train.add_argument(
        "flags", nargs=argparse.REMAINDER, metavar="...", help="--config NAME or FILE, and the recipe's own"
    )
    dashboard = command("dashboard", commands.dashboard, "watch a training that has the callback", DASHBOARD)
    dashboard.add_argument("directory", type=Path, metavar="OUTPUT_DIR", help="the trainer's output_dir")
    dashboard.add_argument(
        "--out", type=Path, metavar="FILE", help="where the page goes (default: OUTPUT_DIR/opd_align/dashboard.html)"
    )
    dashboard.add_argument("--port", type=int, default=0, metavar="N", help="serve on this port (default: a free one)")
    dashboard.add_argument("--once", action="store_true", help="write the page and stop")
    return parser


def _place(text: str) -> AnyPath:
    from opd_align.types import OpdAlignError

    try:
        return as_path(text)
    except OpdAlignError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _study_arguments(parser: argparse.ArgumentParser) -> None:
    """What names a study; each is short for a key of the configuration."""
    group = parser.add_argument_group("the study")
    group.add_argument("--config", metavar="FILE", help="YAML file, or the name of one that ships")
    group.add_argument("--student", metavar="MODEL", help="folder, .gguf file, Hub name, embedded:student, or exact")
    group.add_argument("--teachers", metavar="LIST", help="contexts (Self-1C, ...) and models, comma-separated")
    group.add_argument("--task", metavar="NAME", help="boolq, mmlu, gsm8k, aime2024, aime2025, arithmetic")
    group.add_argument("--data", metavar="FILE", help="questions from a file instead of the Hub")
    group.add_argument("--limit", type=int, metavar="N", help="at most N questions")
    group.add_argument("--questions-from", metavar="DIR", help="questions of a screening, in the bins of --bins")
    group.add_argument("--bins", metavar="LIST", help="difficulty, such as medium,hard")
    group.add_argument("--seed", type=int, metavar="N", help="of all draws")
    group.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any key, dots for depth")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=100)
