"""The address of the training's vLLM server, as each node reaches it."""

from __future__ import annotations

import pytest

from opd_align.training.vllm_address import Node, reachable_address

MAIN = Node("node-0", "10.0.0.1")


@pytest.mark.parametrize(
    ("url", "own", "expected"),
    [
        ("http://0.0.0.0:8000", MAIN, "http://0.0.0.0:8000"),
        ("http://localhost:8000", Node("node-0", None), "http://localhost:8000"),
        ("http://0.0.0.0:8000", Node("node-1", "10.0.0.1"), "http://10.0.0.1:8000"),
        ("http://localhost:8000/v1", Node("node-1", None), "http://10.0.0.1:8000/v1"),
        ("https://127.0.0.1", Node("node-1", None), "https://10.0.0.1"),
        ("http://[::1]:8000", Node("node-1", None), "http://10.0.0.1:8000"),
        ("http://inference.local:8000", Node("node-1", None), "http://inference.local:8000"),
        ("http://10.0.0.7:8000", Node("node-1", None), "http://10.0.0.7:8000"),
    ],
)
def test_names_that_mean_this_node_become_the_address_of_rank_0(url, own, expected):
    assert reachable_address(url, MAIN, own) == expected


@pytest.mark.parametrize("address", [None, "127.0.0.1", "localhost"])
def test_without_an_address_from_the_launcher_the_host_name_is_used(address):
    assert reachable_address("http://0.0.0.0:8000", Node("node-0", address), Node("node-1", None)) == (
        "http://node-0:8000"
    )


def test_an_ipv6_address_is_written_in_brackets():
    main = Node("node-0", "fd00::1")
    assert reachable_address("http://0.0.0.0:8000", main, Node("node-1", None)) == "http://[fd00::1]:8000"


def test_the_node_is_that_of_the_launcher(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "10.1.2.3")
    assert Node.current().address == "10.1.2.3"
    assert Node.current().host
