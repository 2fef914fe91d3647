"""Reads a small file of which nobody knows who put it there.

Rule: it is a regular one and is not read beyond a limit. A pipe in the file's place would hold the
reader for ever, and a file without end would fill the memory.
"""

from __future__ import annotations

import os
import stat

from ..wheel.errors import InvalidConfiguration


def read_regular(path: str | os.PathLike[str], bytes_max: int) -> tuple[os.stat_result, bytes]:
    """The status and the content of one and the same file, whatever replaces it meanwhile. A
    symbolic link is followed. Errors: ``InvalidConfiguration``: it is no regular file, or larger
    than ``bytes_max``; ``OSError``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidConfiguration(
                f"{os.fspath(path)} is no regular file", remedy="Give the path of a file"
            )
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise InvalidConfiguration(
            f"{os.fspath(path)} is too large",
            got=f"more than {bytes_max} bytes",
            limit=f"{bytes_max} bytes",
            remedy="Check that it is the file that was meant",
        )
    return status, content
