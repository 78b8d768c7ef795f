"""The process group of evaluations: it lasts as long as that of the training."""

from __future__ import annotations

import gc
from weakref import ref

import torch

from opd_align.training.distributed import _process_group
from opd_align.training.recipe import run_recipe


def start(folder):
    store = torch.distributed.FileStore(str(folder / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)


def test_it_is_made_once_and_deleted_with_that_of_the_training(tmp_path):
    """Its threads would otherwise run while the interpreter shuts down."""
    (tmp_path / "second").mkdir()
    for folder in (tmp_path, tmp_path / "second"):
        start(folder)
        group = ref(_process_group())
        gc.collect()
        assert group() is not None
        assert group() is _process_group()
        torch.distributed.destroy_process_group()
        gc.collect()
        assert group() is None


def test_a_recipe_ends_the_process_group_of_its_training(tmp_path):
    run_recipe(lambda: start(tmp_path))
    assert not torch.distributed.is_initialized()
