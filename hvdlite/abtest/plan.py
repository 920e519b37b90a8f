"""The experiment as it was decided on before the first run, kept in ``plan.json`` beside the runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from ..compression import load
from ..errors import SettingError
from ..telemetry.reports import parse_stop
from .files import write_whole

_FILE = "plan.json"
SEED = "{seed}"
"""Stands for the seed in the user's command."""


@dataclass(frozen=True)
class Plan:
    """What is run, and how it will be judged."""

    command: tuple[str, ...]
    arms: tuple[str, ...]
    """The first one is the baseline."""
    seeds: int
    size: int
    metric: str = "loss"
    higher_is_better: bool = False
    margin: float | None = None
    """None: see :func:`hvdlite.abtest.verdict.default_margin`."""
    stop_at: str = ""
    metric_regex: str = ""
    link: str = ""
    """What joins the hosts that are made for every run; empty: the ranks are on this machine as it is."""
    hosts: int = 1
    mode: Literal["full", "fork", "shadow"] = "full"
    fork_at: int = 0
    """With ``fork``: all arms train alike for so many steps, without compression."""
    shadow_every: int = 1

    @property
    def baseline(self) -> str:
        """What the other arms are compared with."""
        return self.arms[0]

    @property
    def candidates(self) -> tuple[str, ...]:
        """With ``shadow``: what is played beside the exact run."""
        return tuple(arm for arm in self.arms if load(arm).spec != "none") if self.mode == "shadow" else ()

    @property
    def run_arms(self) -> tuple[str, ...]:
        """The arms that get runs of their own."""
        return (self.baseline,) if self.mode == "shadow" else self.arms

    def order(self) -> list[tuple[int, str]]:
        """``(seed, arm)`` in the order of the runs: A B, B A, so that what changes slowly meets all arms alike; with more arms each also starts in turn."""
        runs = []
        for seed in range(self.seeds):
            start = (seed // 2) % len(self.run_arms)
            turn = [*self.run_arms[start:], *self.run_arms[:start]]
            runs += [(seed, arm) for arm in (turn[::-1] if seed % 2 else turn)]
        return runs

    def options(self) -> list[list[str]]:
        """The options of ``hvdlite ab`` that give this plan, each with its value."""
        found = [["--arms", ",".join(self.arms)], ["--no-baselines"], ["--seeds", str(self.seeds)], ["-np", str(self.size)], ["--metric", self.metric]]
        if self.higher_is_better:
            found.append(["--higher-is-better"])
        if self.margin is not None:
            found.append(["--margin", repr(self.margin)])
        if self.metric_regex:
            found.append(["--metric-regex", self.metric_regex])
        if self.link:
            found += [["--link", self.link], ["--hosts", str(self.hosts)]]
        stop = parse_stop(self.stop_at)
        if stop is not None:
            found.append(["--until", f"{stop.name}={stop.value!r}"] if stop.name else [f"--{stop.kind}", f"{stop.value:g}"])
        return found

    def command_for(self, seed: int) -> list[str]:
        """The user's command, ``{seed}`` replaced."""
        return [word.replace(SEED, str(seed)) for word in self.command]


def begin(plan: Plan, folder: Path, *, resume: bool) -> None:
    """Keep the plan, or compare it with the one that is kept.

    Raises:
        SettingError: there are runs already and ``resume`` is not set; there are none and it is; or the plan is another one.
    """
    path = folder / _FILE
    if not path.exists():
        if resume:
            raise SettingError(f"--resume finds no comparison in {str(folder)!r}; {_FILE} is expected there; leave --resume out, or name the --output of then")
        if folder.exists() and any(folder.iterdir()):
            raise SettingError(f"--output {str(folder)!r} is not empty and holds no comparison; a new folder is expected; choose another")
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.format(msgspec.json.encode(plan)) + b"\n")
        return
    if not resume:
        raise SettingError(f"{str(folder)!r} holds a comparison already; a new folder is expected; write --resume to go on with it, or another --output")
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=Plan)
    except msgspec.DecodeError as error:
        raise SettingError(f"{str(path)!r} cannot be read ({error}); the plan of a comparison is expected; start anew in another --output") from None
    for field in Plan.__dataclass_fields__:
        then, now = getattr(kept, field), getattr(plan, field)
        if then != now:
            raise SettingError(
                f"--resume with another {field}: {_shown(now)}, where the finished runs had {_shown(then)}; "
                "the same comparison is expected, or its runs are not comparable; repeat the first command line, or choose another --output"
            )


def _shown(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else repr(value)
