"""One rank of :func:`hvdlite.run`: ``python -m hvdlite.launch.call FOLDER`` under hvdliterun."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

from .. import settings
from .function import CALL, failure, result


def main(folder: Path) -> None:
    """Call the function that lies in the folder, and leave there what it returns, or what it raised."""
    import cloudpickle

    rank = settings.launcher_rank() or 0
    sys.path[:], pickled = pickle.loads((folder / CALL).read_bytes())  # the path first: modules of the function's are found there
    func, args, kwargs = pickle.loads(pickled)
    try:
        found = cloudpickle.dumps(func(*args, **kwargs))
    except Exception as error:
        failure(folder, rank).write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
        raise
    result(folder, rank).write_bytes(found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
