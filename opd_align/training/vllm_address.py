"""The address at which a rank reaches the vLLM server of the training.

TRL's trainers talk to the server from rank 0 only, often as `localhost` or `0.0.0.0`. Evaluations sample on all ranks;
on another node these names mean that node itself, so the address of rank 0's node takes their place.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

THIS_NODE = ("localhost", "0.0.0.0", "::", "::1")


@dataclass(frozen=True)
class Node:
    """Where a rank runs.

    Args:
        host: The node's own host name.
        address: The address under which other nodes reach rank 0's node, as the launcher gave it; `None` if unknown.
    """

    host: str
    address: str | None

    @staticmethod
    def current() -> Node:
        """The node of this process."""
        return Node(socket.gethostname(), os.environ.get("MASTER_ADDR"))


def reachable_address(url: str, main: Node, own: Node) -> str:
    """The server's URL for a rank on `own`, given the one that rank 0 on `main` uses."""
    parts = urlsplit(url)
    if main.host == own.host or not _is_this_node(parts.hostname or ""):
        return url
    host = main.host if main.address is None or _is_this_node(main.address) else main.address
    host = f"[{host}]" if ":" in host else host
    return urlunsplit(parts._replace(netloc=host if parts.port is None else f"{host}:{parts.port}"))


def _is_this_node(host: str) -> bool:
    return host in THIS_NODE or host.startswith("127.")
