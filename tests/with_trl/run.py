"""TRL's own tests with our trainers: `python tests/with_trl/run.py [pytest arguments]`.

TRL's tests are in no package (neither the wheel nor the source distribution has them), only in its repository: set
`TRL_CHECKOUT` to a checkout, best of the installed version; without it the tag of the installed version is cloned, and
where that cannot be had nothing is tested. Each test runs with TRL's trainers; what passes then runs with an open gate
and with an `AlignmentCallback`, and must pass, unless listed in `cannot_pass.py`. Models and data from the hub are
replaced by small ones (`hub.py`); tests that need others fail with TRL's trainers, and are counted as not run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

from with_trl.cannot_pass import CANNOT_PASS  # noqa: E402

REPOSITORY = "https://github.com/huggingface/trl"
FILES = [
    "tests/experimental/test_gkd_trainer.py",
    "tests/experimental/test_sdpo_trainer.py",
    "tests/experimental/test_distillation_trainer.py",
    "tests/test_distillation_trainer.py",
    "tests/test_grpo_trainer.py",
]
MODES = ("plain", "gate", "callback")


class NoTests(Exception):
    """TRL's tests cannot be had."""


def checkout() -> Path:
    if "TRL_CHECKOUT" in os.environ:
        folder = Path(os.environ["TRL_CHECKOUT"])
        if not (folder / FILES[0]).exists():
            sys.exit(f"TRL_CHECKOUT={folder} is not a checkout of TRL: it has no {FILES[0]}")
        return folder
    version = metadata.version("trl")
    folder = TESTS.parent / "build" / f"trl-{version}"
    if not (folder / FILES[0]).exists():
        command = ["git", "clone", "--quiet", "--depth", "1", "--branch", f"v{version}", REPOSITORY, str(folder)]
        environment = os.environ | {"GIT_TERMINAL_PROMPT": "0"}
        try:
            subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)
        except subprocess.CalledProcessError as error:
            reason = (error.stderr.strip().splitlines() or ["git failed"])[-1]
            raise NoTests(f"TRL's tests are only in {REPOSITORY}, which cannot be cloned ({reason})") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoTests(f"TRL's tests are only in {REPOSITORY}, which cannot be cloned ({error})") from error
    return folder


def run(mode: str, folder: Path, files: list[str], cache: Path, arguments: list[str]) -> dict[str, list[str]]:
    results = cache / f"{mode}.json"
    results.unlink(missing_ok=True)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]),
        "HF_HUB_CACHE": str(cache / "hub"),
        "HF_HUB_OFFLINE": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "OPD_ALIGN_TRL_MODE": mode,
        "OPD_ALIGN_TRL_RESULTS": str(results),
    }
    if mode != MODES[0]:
        environment["OPD_ALIGN_TRL_BASELINE"] = str(cache / f"{MODES[0]}.json")
    command = [sys.executable, "-m", "pytest", "-p", "with_trl.plugin", "-p", "no:cacheprovider", "-q", "--tb=line"]
    command += ["-W", "ignore", "-m", "not slow and not low_priority", "--continue-on-collection-errors"]
    print(f"-- {mode}", flush=True)
    subprocess.run([*command, *files, *arguments], cwd=folder, env=environment, check=False)
    if not results.exists():
        return {}  # no test was collected
    found: dict[str, list[str]] = json.loads(results.read_text())
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", nargs="*", default=FILES, help="test files of the checkout")
    parser.add_argument("--cache", type=Path, help="where models and results are kept (default: a temporary folder)")
    known, arguments = parser.parse_known_args()
    try:
        folder = checkout()
    except NoTests as error:
        print(f"skipped: {error}; set TRL_CHECKOUT to a checkout of TRL {metadata.version('trl')}")
        return 0
    files = [file for file in known.files if (folder / file).exists()]
    with tempfile.TemporaryDirectory() as temporary:
        cache = known.cache or Path(temporary)
        if not (cache / "hub").exists():
            from with_trl.hub import build_cache

            build_cache(cache / "hub")
        results = {"plain": run("plain", folder, files, cache, arguments)}
        if not any(outcome == "passed" for outcome, _ in results["plain"].values()):
            print(f"no test of {folder} passes with TRL {metadata.version('trl')} itself")
            return 1
        results |= {mode: run(mode, folder, files, cache, arguments) for mode in MODES[1:]}
    return report(results)


def report(results: dict[str, dict[str, list[str]]]) -> int:
    passed = {test for test, (outcome, _) in results["plain"].items() if outcome == "passed"}
    print(f"\nwith TRL's own trainers: {len(passed)} of {len(results['plain'])} tests ran and passed")
    unexpected = 0
    for mode in MODES[1:]:
        failed = {test for test in passed if results[mode].get(test, ["missing", ""])[0] != "passed"}
        expected = {test for test in failed if reason(test, mode)}
        unexpected += len(failed - expected)
        counts = f"{len(passed - failed)} of {len(passed)} passed, {len(expected)} cannot"
        print(f"with {mode}: {counts}, {len(failed - expected)} failed")
        for test in sorted(failed - expected):
            print(f"  FAILED {test}: {results[mode].get(test, ['', 'did not run'])[1]}")
        for test in sorted(expected):
            print(f"  cannot {test}: {reason(test, mode)}")
    return int(unexpected > 0)


def reason(test: str, mode: str) -> str | None:
    name = test.rpartition("::")[2]
    return CANNOT_PASS.get((mode, name), CANNOT_PASS.get((mode, name.partition("[")[0])))


if __name__ == "__main__":
    sys.exit(main())
