"""Access to the Hugging Face Hub: without a connection, cached copies are used at once.

The libraries of the Hub repeat failed requests for half a minute and longer before they look into their cache. Here the
connection is tested once, within seconds, and their offline mode is switched on where there is none.
"""

from __future__ import annotations

import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

TIMEOUT_S = 4.0
"""How long the Hub may take to answer the test request."""
VALID_S = 60
"""How long the result of the test is used."""


def hub_is_reachable() -> bool:
    """Whether the Hub answers; False also in the offline mode of huggingface_hub."""
    from huggingface_hub import constants

    return not constants.HF_HUB_OFFLINE and _answers(constants.ENDPOINT, int(time.monotonic() / VALID_S))


@lru_cache(maxsize=4)
def _answers(endpoint: str, minute: int) -> bool:
    try:
        # Goes through the proxies of the environment, as the libraries do.
        with urlopen(Request(endpoint, method="HEAD"), timeout=TIMEOUT_S):
            return True
    except HTTPError:
        return True
    except URLError as error:
        # The server is there; whether its certificate is accepted is up to the libraries.
        return isinstance(error.reason, ssl.SSLError)
    except (OSError, ValueError):
        return False


@contextmanager
def cached_if_unreachable() -> Iterator[bool]:
    """Inside, libraries read cached copies only if the Hub cannot be reached; yields whether it can be."""
    from huggingface_hub import constants

    if hub_is_reachable():
        yield True
        return
    # `datasets` has a setting of its own; it is only changed if it has been imported.
    settings = [constants, *([sys.modules["datasets"].config] if "datasets" in sys.modules else [])]
    before = [each.HF_HUB_OFFLINE for each in settings]
    try:
        for each in settings:
            each.HF_HUB_OFFLINE = True
        yield False
    finally:
        for each, value in zip(settings, before, strict=True):
            each.HF_HUB_OFFLINE = value
