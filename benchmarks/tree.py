"""Generation tree compared with a dict trie: speed of indexing an enriched tree, and memory.

Both index the same rollouts and count children along the same four paths, in one process. The trie gets a random
subset, and the measure is tokens per second. Generating the data is not timed.

    python benchmarks/tree.py [--quick] [--json FILE]

`--quick` skips the tree of 10⁹ tokens, which is built batch by batch in a separate process.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from opd_align.core.tree import GenerationTree
from opd_align.types import Outcome, Rollouts, Tokens, mix64

VOCABULARY = 151_936
PATHS = 4
LENGTH = 300  # mean; completions are a fifth shorter or longer at most
SHORTEST, LONGEST = 240, 360
BATCH = 20_000
SAMPLES_PER_TARGET = 40

ROLLOUTS = 200_000
TRIE_ROLLOUTS = 20_000  # a trie of all rollouts would need 15 GiB, and gets slower as it grows
LARGE_ROLLOUTS = 3_340_000
SECONDS_PER_SIDE = 6.0


def modal_tokens(source_B: np.ndarray[Any, Any], depths: np.ndarray[Any, Any]) -> Tokens:
    """The student's most likely token at each depth after each source, as a hash."""
    word = mix64(source_B.astype(np.uint64)[:, None] << np.uint64(20) | depths.astype(np.uint64))
    return (word % np.uint64(VOCABULARY)).astype(np.uint32)


def paths() -> Tokens:
    return modal_tokens(np.arange(PATHS), np.arange(LONGEST))[:, :LENGTH]


def batches(rollouts: int, seed: int) -> Iterator[Rollouts]:
    """An enriched tree: rollouts are forced off a path, share tokens with siblings for a while, then diverge."""
    rng = np.random.default_rng(seed)
    depths = np.arange(LONGEST)
    trunk = modal_tokens(np.arange(PATHS), depths)
    for first in range(0, rollouts, BATCH):
        rows = min(BATCH, rollouts - first)
        target_R = np.sort(rng.integers(0, max(1, rollouts // SAMPLES_PER_TARGET), rows))
        path_R = target_R % PATHS
        leave_R = (mix64(target_R.astype(np.uint64)) % np.uint64(LENGTH)).astype(np.int64)
        diverge_R = leave_R + 1 + rng.geometric(0.05, rows)
        tokens = rng.integers(0, VOCABULARY, (rows, LONGEST), dtype=np.uint32)
        names, branch_R = np.unique(target_R, return_inverse=True)
        branches = modal_tokens(PATHS + names, depths)
        tokens = np.where(depths < diverge_R[:, None], branches[branch_R], tokens)
        tokens = np.where(depths < leave_R[:, None], trunk[path_R], tokens)
        length_R = rng.integers(SHORTEST, LONGEST + 1, rows)
        yield Rollouts(
            tokens[depths < length_R[:, None]],
            np.concatenate([[0], np.cumsum(length_R)]),
            np.minimum(leave_R + 1, length_R),
            rng.integers(0, 2, rows).astype(np.int8),
            np.zeros(rows, np.uint8),
            mix64(np.arange(first, first + rows, dtype=np.uint64)),
        )


def count_with_tree(parts: list[Rollouts]) -> list[list[tuple[int, int]]]:
    tree = GenerationTree.build(*parts)
    along = [tree.counts_along(path) for path in paths()]
    pairs = [zip(counts.visits_C.tolist(), counts.wins_C.tolist(), strict=True) for counts in along]
    return [[pair for pair in pairs_C if pair[0]] for pairs_C in pairs]  # a trie has no nodes without visits


def count_with_trie(parts: list[Rollouts]) -> list[list[tuple[int, int]]]:
    """The straightforward version: a node is [visits, wins, children]."""
    root: list[Any] = [0, 0, {}]
    for part in parts:
        bounds, wins = part.offsets.tolist(), (part.outcome_R == Outcome.CORRECT).tolist()
        for begin, end, won in zip(bounds[:-1], bounds[1:], wins, strict=True):
            node = root
            node[0] += 1
            node[1] += won
            for token in part.tokens[begin:end].tolist():
                children = node[2]
                node = children.get(token)
                if node is None:
                    node = children[token] = [1, int(won), {}]
                else:
                    node[0] += 1
                    node[1] += won
    counts = []
    for path in paths().tolist():
        along, node = [], root
        for token in path:
            along += [(child[0], child[1]) for _, child in sorted(node[2].items())]
            node = node[2].get(token)
            if node is None:
                break
        counts.append(along)
    return counts


def tokens_per_second(count: Callable[[list[Rollouts]], object], parts: list[Rollouts]) -> float:
    """The fastest of at least two runs within `SECONDS_PER_SIDE`; the first runs also include memory allocation."""
    seconds: list[float] = []
    while len(seconds) < 2 or sum(seconds) < SECONDS_PER_SIDE:
        begin = time.perf_counter()
        count(parts)
        seconds.append(time.perf_counter() - begin)
    return float(sum(len(part.tokens) for part in parts) / min(seconds))


def large_tree(rollouts: int) -> dict[str, float]:
    """Runs in a new process; its peak memory includes the interpreter and the current batch."""
    begin = time.perf_counter()
    tree = GenerationTree.build(batches(rollouts, seed=1))
    built = time.perf_counter()
    for path in paths():
        tree.counts_along(path)
    assert len(tree) == rollouts
    return {
        "large_tree_tokens": len(tree.tokens),
        "peak_gib_1e9_tokens": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "large_tree_data_and_build_seconds": built - begin,
        "large_tree_count_seconds": time.perf_counter() - built,
    }


def measure(*, quick: bool) -> dict[str, float]:
    results: dict[str, float] = {}
    if not quick:
        # First, while this process is small: the peak of a child process starts from the memory of its parent.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            results |= pool.submit(large_tree, LARGE_ROLLOUTS).result()
    parts = list(batches(ROLLOUTS, seed=0))
    chosen = np.random.default_rng(2).permutation(BATCH)[: TRIE_ROLLOUTS * BATCH // ROLLOUTS]
    some = [part.take(chosen) for part in parts]
    if count_with_tree(some) != count_with_trie(some):
        raise SystemExit("tree and trie give different counts")
    tree = GenerationTree.build(*parts)
    results["bytes_per_token"] = tree.nbytes / len(tree.tokens)
    del tree
    results["tree_tokens_per_second"] = tokens_per_second(count_with_tree, parts)
    results["trie_tokens_per_second"] = tokens_per_second(count_with_trie, some)
    results["speedup_over_dict_trie"] = results["tree_tokens_per_second"] / results["trie_tokens_per_second"]
    return results


TARGETS = {"speedup_over_dict_trie": "≥ 100", "bytes_per_token": "≤ 6", "peak_gib_1e9_tokens": "≤ 8"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="skip the tree of 10⁹ tokens")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers as one flat object")
    arguments = parser.parse_args()
    results = measure(quick=arguments.quick)
    table = Table("measure", "value", "target", title="generation tree and dict trie")
    for name, value in results.items():
        table.add_row(name, f"{value:,.2f}", TARGETS.get(name, ""))
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
