"""The one question asked of every file that problems are read from, before it is opened."""

import stat
from pathlib import Path

from fst_core.environments.errors import DataAbsent, DataError


def is_regular(path: Path) -> bool:
    """Whether there is a file; reading anything else, a pipe or a device, might never end.

    Raises:
        DataAbsent: for what can be no path.
        DataError: for what is there and is no regular file, or cannot be looked at.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except ValueError as error:  # a null character
        raise DataAbsent(f"{path}: no such file ({error}); correct the path") from error
    except OSError as error:
        raise DataError(
            f"{path}: is no file that can be read ({error.strerror}); name the file itself"
        ) from error
    if not stat.S_ISREG(mode):
        raise DataError(f"{path}: is no file but {_kind(mode)}; name the file itself")
    return True


def _kind(mode: int) -> str:
    """What is there, in words."""
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "something else")
