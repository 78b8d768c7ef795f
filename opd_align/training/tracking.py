"""Sends a row of metrics to the trackers of a trainer, beside the trainer's own log.

`Trainer.log` would append the row to `state.log_history`, where users look for their own `loss` and `eval_loss`; TRL's
would also move its metrics into this row; and callbacks that print would print every key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from transformers import PrinterCallback, ProgressCallback


def log_to_trackers(trainer: Any, state: Any, control: Any, row: Mapping[str, float]) -> Callable[[str], None]:
    """Calls `on_log` of all callbacks that do not print; returns a function that prints a line as those do."""
    handler, should_log = trainer.callback_handler, control.should_log
    callbacks = handler.callbacks
    printing = [one for one in callbacks if isinstance(one, PrinterCallback | ProgressCallback) or _is_rich(one)]
    handler.callbacks = [one for one in callbacks if one not in printing]
    try:
        trainer.control = handler.on_log(trainer.args, state, control, dict(row))
    finally:
        handler.callbacks = callbacks
        # Logging a row resets `should_log`, which would drop the trainer's own row of this step.
        control.should_log = trainer.control.should_log = should_log
    for one in printing:
        bar = getattr(one, "training_bar", None)
        if bar is not None:
            return partial(bar.console.print, markup=False) if _is_rich(one) else bar.write
    return print if any(isinstance(one, PrinterCallback) for one in printing) else lambda line: None


def _is_rich(callback: Any) -> bool:
    return type(callback).__name__ == "RichProgressCallback"
