"""Sends rows of metrics, media and alerts to the trackers of a trainer, beside the trainer's own log.

`Trainer.log` would append the row to `state.log_history`, where users look for their own `loss` and `eval_loss`; TRL's
would also move its metrics into this row; and callbacks that print would print every key.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from transformers import PrinterCallback, ProgressCallback

from opd_align.core.engine import Analysis
from opd_align.training.alarm_log import Alert, send_alert
from opd_align.training.evaluation_log import tracker_row

logger = logging.getLogger(__name__)

_warned: set[type] = set()
"""Callbacks that have failed; it is said once."""


def log_to_trackers(trainer: Any, state: Any, control: Any, row: Mapping[str, float]) -> Callable[[str], None]:
    """Calls `on_log` of all callbacks that do not print; returns a function that prints a line as those do.

    The callbacks get a copy of `control`: a callback that stops the training if a row has no `loss`, say, is meant for
    the trainer's own rows. One that raises does not keep the row from the others.
    """
    handler = trainer.callback_handler
    callbacks = handler.callbacks
    printing = [one for one in callbacks if isinstance(one, PrinterCallback | ProgressCallback) or _is_rich(one)]
    try:
        for one in callbacks:
            if one in printing:
                continue
            handler.callbacks = [one]
            try:
                handler.on_log(trainer.args, state, copy.copy(control), dict(row))
            except Exception as error:  # a tracker that is not reachable
                log = logger.debug if type(one) in _warned else logger.warning
                _warned.add(type(one))
                log("%s.on_log failed for the row of an evaluation: %r", type(one).__name__, error)
    finally:
        handler.callbacks = callbacks
    for one in printing:
        bar = getattr(one, "training_bar", None)
        if bar is not None:
            return partial(bar.console.print, markup=False) if _is_rich(one) else bar.write
    return print if any(isinstance(one, PrinterCallback) for one in printing) else lambda line: None


def log_media(trainer: Any, step: int, analysis: Analysis, number: int) -> None:
    """Logs the media of the `number`-th evaluation to those trackers of a trainer that can show them."""
    for tracker in running_trackers(trainer):
        tracker.log(tracker_row(step, {}, analysis, tracker, number=number))


def send_alerts(trainer: Any, alerts: Iterable[Alert]) -> None:
    """Warns in the log, and sends an alert to those trackers of a trainer that have alerts; never raises."""
    for alert in alerts:
        logger.warning("%s. %s", alert.title, alert.text)
        for tracker in running_trackers(trainer):
            try:
                send_alert(tracker, alert)
            except Exception as error:  # not reachable: it is in the log, and in the history
                logger.warning("Could not send an alert to %s: %r", tracker.__name__, error)


def running_trackers(trainer: Any) -> list[Any]:
    """The modules `wandb` and `trackio`, as far as the trainer reports to them and they have a run.

    They have media and alerts, under the same names.
    """
    found: list[Any] = []
    if "wandb" in trainer.args.report_to:
        import wandb

        found += [wandb] if wandb.run is not None else []
    if "trackio" in trainer.args.report_to:
        import trackio

        found += [trackio] if trackio.context_vars.current_run.get() is not None else []
    return found


def _is_rich(callback: Any) -> bool:
    return type(callback).__name__ == "RichProgressCallback"
