"""The arms: which compressors are compared, and whether a difference can be put down to one thing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import combinations

from ..compression import Compressor, ErrorFeedback, load, split_specs
from ..errors import SettingError

BASELINES = ("none", "fp16")
"""Added unless refused: a compressor that is not better than 16 bits is not worth its trouble."""


def parse_arms(written: str, *, baselines: bool = True) -> list[str]:
    """Read ``none,powersgd:rank=4,topk:density=0.01,feedback=false`` (three arms); the baseline, ``none`` or else the first one, comes first.

    Raises:
        SettingError: an arm is given twice, or only one is left.
        CompressionError: an arm is no compressor.
    """
    arms = split_specs(written)
    specs = [load(arm).spec for arm in arms]
    for i, spec in enumerate(specs):
        if spec in specs[:i]:
            raise SettingError(f"arms {arms[specs.index(spec)]!r} and {arms[i]!r} are the same compressor; different ones are expected; drop one")
    if baselines:
        arms = [*(arm for arm in BASELINES if arm not in specs), *arms]
    if "none" in arms:
        arms.insert(0, arms.pop(arms.index("none")))
    if len(arms) < 2:
        raise SettingError(f"--arms {written!r} gives {len(arms)} arm; at least two are expected to compare; write e.g. --arms none,fp16,powersgd:rank=4")
    return arms


def entangled(arms: Sequence[str]) -> list[str]:
    """What cannot be told from these arms: pairs of one compressor that differ in several options, in words."""
    found = []
    for a, b in combinations(arms, 2):
        first, second = _options(a), _options(b)
        keys = [key for key in first if key in second and first[key] != second[key]]
        if first["name"] == second["name"] and len(keys) > 1:
            found.append(f"{a} and {b} differ in {' and '.join(keys)}: what differs between them cannot be put down to one of these")
    return found


def _options(arm: str) -> dict[str, object]:
    compressor = load(arm)
    inner: Compressor = compressor.inner if isinstance(compressor, ErrorFeedback) else compressor
    options = {f.name: getattr(inner, f.name) for f in dataclasses.fields(inner) if f.init}
    return {"name": arm.partition(":")[0].strip(), **options, "feedback": isinstance(compressor, ErrorFeedback)}
