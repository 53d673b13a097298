"""What is asked of every file and folder of problems before it is opened."""

import os
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


def refuse_no_folder(path: Path) -> None:
    """Refuse what is no folder whose contents can be listed, before it is taken for an empty one.

    Raises:
        DataError: one sentence, whatever is there instead.
    """
    named = "name the folder that holds the pools"
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        there = "a link to nothing" if path.is_symlink() else "no such folder"
        raise DataError(f"{path}: {there}; {named}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); {named}") from error
    if not stat.S_ISDIR(mode):
        raise DataError(f"{path}: is no folder but {_kind(mode)}; {named}")
    if not os.access(path, os.R_OK | os.X_OK):
        raise DataError(f"{path}: cannot be read (no permission); allow it, or {named}")


def _kind(mode: int) -> str:
    """What is there, in words."""
    kinds = {
        stat.S_IFREG: "a file",
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "something else")
