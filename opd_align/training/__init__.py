"""Distillation while it trains: the only room that knows TRL. What is imported from here is fetched when first used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_ROOM_OF = {
    "CalibratedDivergence": "calibrated",
    "DivergenceAbove": "gates",
    "Gate": "gates",
    "GateBatch": "gates",
    "GatedDistillationTrainer": "trainers",
    "GatedGKDTrainer": "trainers",
    "GatedGRPOTrainer": "trainers",
    "IncorrectOnly": "gates",
    "Open": "gates",
    "OwnGate": "gates",
    "SDPOGate": "sdpo",
    "SignAgrees": "gates",
}

__all__ = list(_ROOM_OF)


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'opd_align.training' has no attribute {name!r}")
    return getattr(import_module(f"opd_align.training.{_ROOM_OF[name]}"), name)
