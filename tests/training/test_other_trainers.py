"""The callback on TRL's other distillation trainers, each with its own teacher and objective."""

from __future__ import annotations

import pytest
import torch
from support.trainings import ARITHMETIC, OTHERS, TINY, held_out, make, same_weights, trainer_rows

from opd_align import AlignmentCallback, OpdAlignError
from opd_align.core.alignment import pairs_of

pytestmark = [pytest.mark.training, pytest.mark.filterwarnings("ignore")]

OWN = {
    "sdpo": ("Self-1C", "jsd_1"),
    "sdft": ("Self-1C", "jsd_0.5"),
    "iw_opd": ("teacher", "single_sample"),
    "gold": ("teacher", "jsd_0.5"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_evaluations_do_not_change_the_training(kind, tmp_path):
    torch.set_num_threads(1)
    alone = make(kind, tmp_path / "alone", max_steps=2)
    alone.train()
    trainer = make(kind, tmp_path / "watched", max_steps=2)
    callback = AlignmentCallback(
        trainer, held_out(2), ARITHMETIC, every_n_steps=1, max_overhead=None, budget=TINY, on_error="raise"
    )
    trainer.add_callback(callback)
    trainer.train()
    assert pairs_of(callback.latest.children) == [OWN[kind]]
    assert callback.schedule.num_evaluations == 3
    assert trainer_rows(trainer) == trainer_rows(alone)
    assert same_weights(trainer.model, alone.model)


def test_a_teacher_with_another_tokenizer_is_refused(tmp_path):
    trainer = make("gold", tmp_path)
    trainer.use_uld_loss = True
    with pytest.raises(OpdAlignError, match="has a different tokenizer"):
        AlignmentCallback(trainer, held_out(2), ARITHMETIC)
