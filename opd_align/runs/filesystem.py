"""Files of a run, on a local disk or in an object store such as s3://bucket/run, and atomic writing.

A local path stays a `pathlib.Path`. Everything else that fsspec supports is a `RemotePath`, which has the few path
methods that runs need. Listings are never cached, since other processes may write to the same store.

A file appears under its final name only when it is complete: on a local disk through a temporary file, fsync, rename
and fsync of the folder; in an object store through a single put.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import wraps
from itertools import count
from pathlib import Path
from typing import Any, ParamSpec, TypeAlias, TypeVar
from uuid import uuid4

from opd_align.types import OpdAlignError

P = ParamSpec("P")
T = TypeVar("T")

LOCAL_PROTOCOLS = ("file", "local")

READ_RETRY_DELAYS_S = (0.2, 1.0, 4.0)
"""Delays before a failed read is retried: object stores throttle requests, shared disks stall."""

TEMPORARY_SUFFIX = ".tmp"
DAMAGED_SUFFIX = ".damaged"
RUN_FILE = re.compile(r"(?:manifest|prompts|provenance|spent|summary)\.json|lock|.*\.parquet")
"""Names of the files of a run directory and of its subfolders that nothing else may replace."""


def as_path(address: PathLike) -> AnyPath:
    """Converts a local path to `Path` and a URL (`protocol://...`) to `RemotePath`."""
    if isinstance(address, RemotePath):
        return address
    text = os.fspath(address)
    protocol, separator, rest = text.partition("://")
    if separator and not rest.strip("/") and not (protocol in LOCAL_PROTOCOLS and rest):
        raise OpdAlignError(f"{text!r} is incomplete: a path is missing after {protocol}://")
    if not separator or protocol in LOCAL_PROTOCOLS:
        return Path(rest if separator else text)
    try:
        import fsspec

        fs, path = fsspec.core.url_to_fs(text.rstrip("/"), use_listings_cache=False)
    except ImportError as error:  # fsspec itself, or what it needs for this protocol
        # The extra installs S3 support; for other stores fsspec's own message says what to install.
        hint = "; pip install 'opd-align[remote]'" if protocol in ("s3", "s3a") or error.name == "fsspec" else ""
        raise OpdAlignError(f"{text!r} cannot be opened: {error}{hint}") from error
    except ValueError as error:
        raise OpdAlignError(f"{text!r} is not a URL that fsspec supports: {error}") from error
    except Exception as error:  # every filesystem implementation has its own error types
        raise OpdAlignError(
            f"{text!r} cannot be opened as a run directory: {type(error).__name__}: {error}; pass a local folder, or a "
            "URL such as s3://bucket/run"
        ) from error
    return RemotePath(fs, path, text.rstrip("/"))


def error_reason(error: OSError) -> str:
    """A short description of the error; errors of object stores have no `strerror`."""
    return error.strerror or str(error) or type(error).__name__


def _raises_os_error(method: Callable[P, T]) -> Callable[P, T]:
    """Converts store-specific errors to `OSError`, which code that works with files expects."""

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
    """A file or folder in an fsspec filesystem. A folder exists as soon as it contains a file.

    Args:
        fs: The fsspec filesystem.
        path: The path within the filesystem, without the protocol.
        address: The full URL, as shown to the user.
    """

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

    @_raises_os_error
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

    @_raises_os_error
    def _names(self) -> list[str]:
        self.fs.invalidate_cache()
        try:
            entries = self.fs.ls(self.path, detail=False)
        except FileNotFoundError:
            return []
        # Some stores keep an empty object for the folder itself.
        names = {entry.rstrip("/").rpartition("/")[2] for entry in entries if entry.strip("/") != self.path.strip("/")}
        return sorted(names)

    @_raises_os_error
    def read_bytes(self) -> bytes:
        return bytes(self.fs.cat_file(self.path))

    @_raises_os_error
    def write_bytes(self, data: bytes | memoryview) -> None:
        """Writes the whole file with a single put, so that it is never visible in part."""
        self.fs.pipe_file(self.path, bytes(data))

    def write_text(self, text: str, encoding: str) -> None:
        self.write_bytes(text.encode(encoding))

    @_raises_os_error
    def unlink(self, missing_ok: bool = False) -> None:
        try:
            self.fs.rm_file(self.path)
        except FileNotFoundError:
            if not missing_ok:
                raise

    @_raises_os_error
    def rename(self, other: RemotePath) -> None:
        self.fs.mv(self.path, other.path)

    def mkdir(self, *, parents: bool, exist_ok: bool) -> None:
        """Does nothing: object stores have no folders."""


AnyPath: TypeAlias = Path | RemotePath
PathLike: TypeAlias = str | os.PathLike[str] | RemotePath
"""Everything that `as_path` accepts."""


def write_atomic(path: AnyPath, data: bytes | memoryview, *, sync: bool = True) -> None:
    """Writes a file atomically; on `OSError` no partial file is left behind.

    Args:
        path: The file to write.
        data: Its content.
        sync: Whether the file is on disk when this returns, so that it survives a power failure.
    """
    if isinstance(path, RemotePath):
        return path.write_bytes(data)
    # Not the process ID: on a shared disk, processes on two machines may have the same one.
    temporary = path.with_name(f".{path.name}.{uuid4().hex}{TEMPORARY_SUFFIX}")
    try:
        with temporary.open("xb", buffering=0) as file:
            remaining = memoryview(data)
            while len(remaining):
                remaining = remaining[file.write(remaining) :]
            if sync:
                os.fsync(file.fileno())
        temporary.replace(path)
        if sync:
            sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def write_output(path: AnyPath, text: str) -> None:
    """Writes a file that a user asked for and can make again: atomically, or directly to a device such as /dev/stdout.

    A symbolic link stays one; the file that it points to is replaced.
    """
    target = real_path(path)
    if target.is_file() or not target.exists():
        write_atomic(target, text.encode(), sync=False)
    else:
        target.write_bytes(text.encode())


def real_path(path: AnyPath) -> AnyPath:
    """A path without symbolic links. `Path.resolve` raises an error for a link to itself."""
    return path if isinstance(path, RemotePath) else Path(os.path.realpath(path))


def check_not_of_a_run(path: AnyPath) -> None:
    """Raises `OpdAlignError` if a file that a user asked for would replace one of a run directory."""
    target = real_path(path)
    folders = (target.parent, target.parent.parent)
    if RUN_FILE.fullmatch(target.name) and any((folder / "manifest.json").exists() for folder in folders):
        raise OpdAlignError(f"cannot write to {str(path)!r}: it is a file of a run; choose another path")


def check_output(path: AnyPath) -> None:
    """Raises `OpdAlignError`, before the work is done, if a file cannot be written, or belongs to a run."""
    check_not_of_a_run(path)
    if isinstance(path, RemotePath):
        return
    if path.is_dir():
        raise OpdAlignError(f"cannot write to {str(path)!r}: it is a folder; choose a file")
    if not path.parent.is_dir():
        problem = "is not a folder" if path.parent.exists() else "does not exist"
        raise OpdAlignError(f"cannot write to {str(path)!r}: {str(path.parent)!r} {problem}; create it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise OpdAlignError(f"cannot write to {str(path)!r}: no permission; choose another path")


def sync_folder(folder: Path) -> None:
    """Flushes a folder's entries to disk, so that created and renamed files survive a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_temporaries(folder: Path) -> None:
    """Deletes temporary files of killed processes; no other process may be writing to the folder."""
    for file in folder.glob(f".*{TEMPORARY_SUFFIX}"):
        file.unlink(missing_ok=True)


def quarantine(path: AnyPath) -> str:
    """Renames a damaged file and returns its new name; the file is never deleted."""
    names = (f"{path.name}{DAMAGED_SUFFIX}{'' if n == 1 else f'-{n}'}" for n in count(1))
    new_name = next(name for name in names if not path.with_name(name).exists())
    path.rename(path.with_name(new_name))  # type: ignore[arg-type]  # both have the same type
    return new_name


def read_file(path: AnyPath) -> bytes | None:
    """The content of a file, or `None` if it does not exist; failed reads are retried a few times."""
    delays = iter(READ_RETRY_DELAYS_S)
    while True:
        try:
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (PermissionError, IsADirectoryError):
            raise
        except OSError:
            delay = next(delays, None)
            if delay is None:
                raise
            time.sleep(delay)
