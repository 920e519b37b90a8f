"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ..errors import HvdliteError


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say of a failure what could not be written, and what to do.

    Raises:
        HvdliteError: in place of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise HvdliteError(
            f"cannot write {path} ({error.strerror}); free space and a writable folder are expected; finished runs are kept: mend it and go on with --resume"
        ) from None


def write_whole(path: Path, content: bytes) -> None:
    """Write a file and put it in its place when it is on the disk: whatever happens, nobody sees half of it.

    Raises:
        HvdliteError: it cannot be written.
    """
    new = path.with_name(path.name + ".new")
    with writing(path):
        try:
            with new.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, path)
        except OSError:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
            raise
