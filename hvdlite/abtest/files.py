"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import HvdliteError


def write_whole(path: Path, content: bytes) -> None:
    """Write a file and put it in its place when it is on the disk: whatever happens, nobody sees half of it.

    Raises:
        HvdliteError: it cannot be written.
    """
    new = path.with_name(path.name + ".new")
    try:
        with new.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except OSError as error:
        raise HvdliteError(
            f"cannot write {path} ({error.strerror}); free space and a writable folder are expected; finished runs are kept: mend it and go on with --resume"
        ) from None
