"""Opens what lies inside a run folder, and nothing else: no symbolic link is followed, no pipe or device is read.

The folder that a user names may itself be a link. Everything below it is opened relative to its descriptor, so that
a folder that changes meanwhile leads nowhere else either.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Generator
from pathlib import Path

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
          stat.S_IFDIR: "a folder"}  # fmt: skip


@contextlib.contextmanager
def open_folder(path: Path, *names: str) -> Generator[int, None, None]:
    """Descriptor of the folder `path`, or of the folder `names` inside it; OSError where it is none."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names:
            inner = _open(name, folder, os.O_DIRECTORY)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def open_file(name: str, folder: int) -> int:
    """Descriptor of the regular file `name` in the folder with this descriptor; OSError for anything else."""
    file = _open(name, folder)
    kind = stat.S_IFMT(os.fstat(file).st_mode)
    if kind != stat.S_IFREG:
        os.close(file)
        raise OSError(errno.EINVAL, f"is {_KINDS.get(kind, 'no file')}, not a file")
    return file


def _open(name: str, folder: int, flags: int = 0) -> int:
    if not name or "/" in name or name in (".", ".."):
        raise OSError(errno.EINVAL, f"{name!r} is no name of a file")
    try:
        return os.open(name, _FLAGS | flags, dir_fd=folder)
    except OSError as error:
        # Linux says ENOTDIR for a link where a folder was asked for.
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(name, folder):
            raise OSError(errno.ELOOP, "is a symbolic link, and links are not followed") from None
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "is a socket or a device, not a file") from None
        raise


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def read_text(path: Path, name: str, limit: int) -> str:
    """Text of a small file of a run folder; OSError where it is none, ValueError above `limit` bytes or no UTF-8."""
    with open_folder(path) as folder:
        file = open_file(name, folder)
    with os.fdopen(file, "rb") as handle:
        data = handle.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"it is larger than {limit >> 20} MiB")
    return data.decode("utf-8")
