"""Where the files of a run live: on a disk, or behind an address such as s3://bucket/run.

A local path stays a `pathlib.Path`. Everything else that fsspec supports is a `RemotePath`, with the few methods of
a path that runs need. An object store has neither folders nor renaming, and needs none: one put writes a whole file
under its final name. Listings are never cached, since other processes may write to the same store.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeAlias, TypeVar

from opd_align.types import OpdAlignError

P = ParamSpec("P")
T = TypeVar("T")

LOCAL = ("file", "local")


def as_path(address: PathLike) -> AnyPath:
    """A path as it is; an address with `://` through fsspec."""
    if isinstance(address, RemotePath):
        return address
    text = os.fspath(address)
    protocol, mark, rest = text.partition("://")
    if mark and not rest.strip("/") and not (protocol in LOCAL and rest):
        raise OpdAlignError(f"{text!r} names no place; say what comes after {protocol}://")
    if not mark or protocol in LOCAL:
        return Path(rest if mark else text)
    try:
        import fsspec

        fs, path = fsspec.core.url_to_fs(text.rstrip("/"), use_listings_cache=False)
    except ImportError as error:  # fsspec itself, or what it needs for this protocol
        # The extra brings S3; for other stores fsspec says itself what to install.
        hint = "; pip install 'opd-align[remote]'" if protocol in ("s3", "s3a") or error.name == "fsspec" else ""
        raise OpdAlignError(f"{text!r} cannot be opened: {error}{hint}") from error
    except ValueError as error:
        raise OpdAlignError(f"{text!r} is no address that fsspec knows: {error}") from error
    except Exception as error:  # every kind of place has errors of its own
        raise OpdAlignError(
            f"{text!r} cannot be opened as a place for runs: {type(error).__name__}: {error}; give a folder, or an "
            "address in a store such as s3://bucket/run"
        ) from error
    return RemotePath(fs, path, text.rstrip("/"))


def error_reason(error: OSError) -> str:
    """The reason in a few words; a store's own errors have no `strerror`."""
    return error.strerror or str(error) or type(error).__name__


def _plainly(method: Callable[P, T]) -> Callable[P, T]:
    """Every store has errors of its own; whoever works with files expects `OSError`."""

    @wraps(method)
    def wrapper(*args: P.args, **options: P.kwargs) -> T:
        try:
            return method(*args, **options)
        except OSError:
            raise
        except Exception as error:
            raise OSError(errno.EIO, f"{type(error).__name__}: {error}") from error

    return wrapper


@dataclass(frozen=True)
class RemotePath:
    """A file or folder behind an address; folders are there as soon as something is in them."""

    fs: Any
    path: str
    address: str

    def __str__(self) -> str:
        return self.address

    def __truediv__(self, name: str) -> RemotePath:
        return replace(self, path=f"{self.path}/{name}", address=f"{self.address}/{name}")

    @property
    def name(self) -> str:
        return self.address.rpartition("/")[2]

    @property
    def stem(self) -> str:
        return self.name.rpartition(".")[0] or self.name

    @property
    def parent(self) -> RemotePath:
        return replace(self, path=self.path.rpartition("/")[0], address=self.address.rpartition("/")[0])

    def with_name(self, name: str) -> RemotePath:
        return self.parent / name

    def resolve(self) -> RemotePath:
        return self

    def as_uri(self) -> str:
        return self.address

    def exists(self) -> bool:
        return self._kind() is not None

    def is_file(self) -> bool:
        return self._kind() == "file"

    def is_dir(self) -> bool:
        return self._kind() == "directory"

    @_plainly
    def _kind(self) -> str | None:
        self.fs.invalidate_cache()
        try:
            return str(self.fs.info(self.path)["type"])
        except FileNotFoundError:
            return None

    def iterdir(self) -> Iterator[RemotePath]:
        return iter([self / name for name in self._names()])

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        return iter([self / name for name in self._names() if fnmatchcase(name, pattern)])

    @_plainly
    def _names(self) -> list[str]:
        self.fs.invalidate_cache()
        try:
            found = self.fs.ls(self.path, detail=False)
        except FileNotFoundError:
            return []
        # Some stores keep an empty object for the folder itself.
        names = {each.rstrip("/").rpartition("/")[2] for each in found if each.strip("/") != self.path.strip("/")}
        return sorted(names)

    @_plainly
    def read_bytes(self) -> bytes:
        return bytes(self.fs.cat_file(self.path))

    @_plainly
    def write_bytes(self, data: bytes | memoryview) -> None:
        """One put: all of it, or nothing."""
        self.fs.pipe_file(self.path, bytes(data))

    def write_text(self, text: str, encoding: str) -> None:
        self.write_bytes(text.encode(encoding))

    @_plainly
    def unlink(self, missing_ok: bool = False) -> None:
        try:
            self.fs.rm_file(self.path)
        except FileNotFoundError:
            if not missing_ok:
                raise

    @_plainly
    def rename(self, other: RemotePath) -> None:
        self.fs.mv(self.path, other.path)

    def mkdir(self, *, parents: bool, exist_ok: bool) -> None:
        """Nothing to do."""


AnyPath: TypeAlias = Path | RemotePath
PathLike: TypeAlias = str | os.PathLike[str] | RemotePath
"""What may be given for a place."""
