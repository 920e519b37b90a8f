"""The benchmarks are scripts beside each other, not a package."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))  # at the end: one of them is named as a module of Python
