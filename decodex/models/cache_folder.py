"""The user's cache folder: where it is, its room, and folders that appear in it whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from decodex.errors import ModelError

__all__ = ["build_folder", "cache_dir", "disk_errors", "require_free_bytes"]


def cache_dir() -> Path:
    """`$DECODEX_CACHE`, or `~/.cache/decodex`; made when absent."""
    root = Path(os.environ.get("DECODEX_CACHE") or Path.home() / ".cache" / "decodex").expanduser()
    with disk_errors(root):
        root.mkdir(parents=True, exist_ok=True)
    return root


def require_free_bytes(folder: Path, num_bytes: int) -> None:
    """Refuse before the work starts when the disk under `folder` can't hold `num_bytes` more."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise ModelError(
            f"{folder}: the model cache needs {num_bytes / 2**20:.0f} MiB free, got {free / 2**20:.0f} MiB; "
            "free some space or set DECODEX_CACHE to a folder on another disk"
        )


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a full disk or a folder that can't be written into one clear error."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason = "no space left on the disk; free some, or set DECODEX_CACHE to a folder on another disk"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOENT):
            reason = f"can't be written ({error.strerror}); set DECODEX_CACHE to a folder that can"
        else:
            raise
        raise ModelError(f"{path}: {reason}") from error


def build_folder(target: Path, num_bytes: int, fill: Callable[[Path], None]) -> Path:
    """Return `target`; when absent, `fill(temporary folder)` and a rename build it, one builder at a time.

    `num_bytes` must be free on the disk. A start that finds another process building waits for it.
    """
    if target.is_dir():
        return target
    from filelock import FileLock

    with disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(str(target) + ".lock"):
            if target.is_dir():
                return target
            prefix = f".partial-{target.name}-"
            for leftover in target.parent.glob(prefix + "*"):  # of a start that was killed
                shutil.rmtree(leftover, ignore_errors=True)
            require_free_bytes(target.parent, num_bytes)
            work = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
            try:
                fill(work)
                work.rename(target)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return target
