"""``python -m hvdlite`` is the command ``hvdlite``."""

from .cli import main

main()
