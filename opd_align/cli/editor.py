"""`opd-align completion` and `opd-align schema`: what shells and editors need to know."""

from __future__ import annotations

import argparse
import json


def schema(args: argparse.Namespace) -> int:
    from opd_align.study.schema import config_schema

    print(json.dumps(config_schema(), indent=2, ensure_ascii=False))
    return 0


def completion(args: argparse.Namespace) -> int:
    from typing import get_args

    from opd_align.backends.base import BACKENDS
    from opd_align.cli.completion import completion_script
    from opd_align.settings import Allocation, Method
    from opd_align.study.config import builtin_configs
    from opd_align.tasks import TASKS
    from opd_align.teachers.contexts import CONTEXTS

    values = {
        "--task": list(TASKS), "--config": list(builtin_configs()), "--backend": list(BACKENDS),
        "--estimator": list(get_args(Method)), "--allocation": list(get_args(Allocation)),
        "--teachers": [name for name in CONTEXTS if " " not in name],
    }  # fmt: skip
    print(completion_script(args.shell, args.parser, values), end="")
    return 0
