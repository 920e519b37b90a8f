"""One seed for every generator of random numbers that a script may use without knowing: how two runs get the same start."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np


def seed_everything(seed: int, rank: int) -> None:
    """Seed ``random``, numpy, and those of torch, TensorFlow and Keras that are imported already; none is imported for it.

    Ranks get different numbers from one seed, as unseeded ranks do: dropout and augmentation differ, and what must be equal is broadcast from rank 0.
    """
    mine = int(np.random.SeedSequence((seed, rank)).generate_state(1)[0])
    loaded: dict[str, Any] = {name: sys.modules[name] for name in ("keras", "tensorflow", "torch") if name in sys.modules}
    if "keras" in loaded:  # first: it seeds random and numpy too, and its own generator
        loaded["keras"].utils.set_random_seed(mine)
    random.seed(mine)
    np.random.seed(mine)  # the global generator: it is the one that scripts use without passing one on
    if "torch" in loaded:
        loaded["torch"].manual_seed(mine)
    if "tensorflow" in loaded:
        loaded["tensorflow"].random.set_seed(mine)
