"""Forecasts: what each compressor makes of a step at a place, how sure that is, where it would begin or cease to pay, and what to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import median

from ..compression import load
from ..link import Link
from .measured import Measured
from .model import Calibration, Luck, StepModel
from .place import Place
from .ranks import is_gathered

BASELINE = "none"
HELP_FROM = 1.05
"""Below this, even an exchange that costs nothing would not be worth the trouble."""
MODEL_SPREAD = 0.07
"""Standard deviation of what the model itself gets wrong, the drift of a machine included: as benchmarks/predict_accuracy.py finds it."""
CODEC_SPREAD = 0.1
DRAG_SPREAD = 0.5
_DRAWS = 60
_STEPS_PER_DRAW = 5
_INTERVAL = (0.05, 0.95)
_RATES = (1e6, 1e11)  # bits a second, between which break-even is looked for
_BISECTIONS = 24
_EQUALLY_FAST = 1.02


@dataclass(frozen=True)
class Span:
    """A forecast, and where 90 % of it lie when what is not known exactly is drawn anew."""

    middle: float
    low: float
    high: float


@dataclass(frozen=True)
class ArmForecast:
    """One compressor. Milliseconds a step; ratios are to no compression."""

    arm: str
    step_ms: Span
    ratio: Span
    exposed_ms: float
    """What training waits for communication."""
    codec_ms: float
    """CPU of encoding and decoding, on one rank."""
    wire_bytes: int
    """A rank sends to others."""
    pays_below_gbit: float | None
    """Rate of links below which it is faster than no compression; None: at no rate, infinity: at every one."""
    pays_up_to_ranks: int | None
    """For compressors whose bytes grow with the ranks, and one rank a host: the largest number tried at which it is faster; None: at none. Others: 0."""

    @property
    def verdict(self) -> str:
        """In a word or two."""
        if self.arm == BASELINE:
            return "the baseline"
        return "faster" if self.ratio.high < 1 else "slower" if self.ratio.low > 1 else "no telling"


@dataclass(frozen=True)
class Forecast:
    """All compressors at one place."""

    place: Place
    where: str
    computed_ms: float
    """A step without any exchange."""
    ceiling_ms: float
    """A step with an exchange that costs nothing but the agreement on it."""
    highest_speedup: float
    can_help: bool
    arms: list[ArmForecast]
    recommendation: str
    setting: str
    """The compressor to choose; ``none``: leave it off."""


def forecast(measured: Measured, place: Place, calibration: Calibration, arms: Sequence[str] = (), seed: int = 0) -> Forecast:
    """Forecast compressors at a place.

    Raises:
        SettingError: something that is needed for it was not measured.
    """
    arms = [BASELINE, *(a for a in (arms or measured.layouts) if a != BASELINE)]
    models = {arm: StepModel(measured, place, arm, calibration=calibration) for arm in arms}
    steps = measured.steps(held=True)
    drawn = {arm: _draws(model, seed) for arm, model in models.items()}
    found = [_arm(models, arm, drawn) for arm in arms]
    baseline = next(f for f in found if f.arm == BASELINE)
    ceiling_ms = 1e3 * median(models[BASELINE].ceiling(step).step for step in steps)
    computed_ms = 1e3 * median(models[BASELINE].ceiling(step).computed for step in steps)
    highest = baseline.step_ms.middle / ceiling_ms
    can_help = highest >= HELP_FROM
    words, setting = _recommendation(found, can_help)
    return Forecast(place, place.words, computed_ms, ceiling_ms, highest, can_help, found, words, setting)


def _draws(model: StepModel, seed: int) -> list[float]:
    """Seconds a step, as often as it takes to see how they spread. Draws with one number share their luck over all compressors."""
    steps, found = model.measured.steps(held=True), []
    for number in range(_DRAWS):
        random = Random(f"{seed} {number}")
        luck = Luck(
            requests=max(0.2, random.gauss(1, max(MODEL_SPREAD, model.cost_spread))),
            codecs=max(0.2, random.gauss(1, CODEC_SPREAD)),
            drag=max(0.0, random.gauss(1, DRAG_SPREAD)),
            random=random,
        )
        of_model = max(0.2, random.gauss(1, MODEL_SPREAD))
        some = random.choices(steps, k=_STEPS_PER_DRAW)
        found.append(of_model * median(model.play(step, luck).step for step in some))
    return found


def _arm(models: dict[str, StepModel], arm: str, drawn: dict[str, list[float]]) -> ArmForecast:
    model, base = models[arm], drawn[BASELINE]
    outcomes = [model.play(step) for step in model.measured.steps(held=True)]
    own = Random(f"own error of {arm}")
    ratios = [a / b * (1 if arm == BASELINE else own.gauss(1, MODEL_SPREAD / 2)) for a, b in zip(drawn[arm], base, strict=True)]
    step = _span(1e3 * median(o.step for o in outcomes), [1e3 * s for s in drawn[arm]])
    baseline = median(models[BASELINE].play(s).step for s in model.measured.steps(held=True))
    return ArmForecast(
        arm=arm,
        step_ms=step,
        ratio=_span(step.middle / 1e3 / baseline, ratios),
        exposed_ms=1e3 * median(o.exposed for o in outcomes),
        codec_ms=1e3 * model.codec_seconds,
        wire_bytes=model.wire_bytes,
        pays_below_gbit=None if arm == BASELINE else break_even_gbit(models[BASELINE], model),
        pays_up_to_ranks=0 if arm == BASELINE else _break_even_ranks(models[BASELINE], model),
    )


def _span(middle: float, values: Sequence[float]) -> Span:
    ordered = sorted(values)
    low, high = (ordered[round(share * (len(ordered) - 1))] for share in _INTERVAL)
    return Span(middle, min(low, middle), max(high, middle))


def typical_seconds(model: StepModel) -> float:
    """Of the step in the middle: one simulation, where many are asked for."""
    steps = model.measured.steps(held=True)
    middle = sorted(steps, key=lambda ranks: max(r.computed[0] for r in ranks))[len(steps) // 2]
    return model.play(middle).step


def break_even_gbit(baseline: StepModel, model: StepModel) -> float | None:
    """The rate of the links below which a compressor is faster than none; None: at none, infinity: at all."""
    place = baseline.place if baseline.place.num_hosts > 1 else _spread_out(baseline.place)

    def pays(bits_per_second: float) -> bool:
        delay = place.link.delay_seconds if place.link is not None else 0.0
        at = replace(place, link=Link(bits_per_second, delay))
        return typical_seconds(replace(model, place=at)) < typical_seconds(replace(baseline, place=at))

    low, high = _RATES
    if not pays(low):
        return None
    if pays(high):
        return math.inf
    for _ in range(_BISECTIONS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if pays(middle) else (low, middle)
    return low / 1e9


def _spread_out(place: Place) -> Place:
    """The same ranks, one on each host, with the cores they have now."""
    return replace(place, num_hosts=place.num_ranks, cores=place.cores / place.ranks_per_host)


def _break_even_ranks(baseline: StepModel, model: StepModel) -> int | None:
    """The largest number of hosts with one rank each at which a compressor is faster; 0 where the number does not matter."""
    if not is_gathered(load(model.arm)) or baseline.place.num_hosts == 1:
        return 0
    place = _spread_out(baseline.place) if baseline.place.ranks_per_host > 1 else baseline.place
    paying = None
    for number in model.measured.numbers_of_ranks(model.arm):
        at = replace(place, num_ranks=number, num_hosts=number)
        if typical_seconds(replace(model, place=at)) < typical_seconds(replace(baseline, place=at)):
            paying = number
    return paying


def _recommendation(arms: Sequence[ArmForecast], can_help: bool) -> tuple[str, str]:
    """One line, and the compressor."""
    if not can_help:
        return "compression cannot help here: leave it off", BASELINE
    faster = [a for a in arms if a.verdict == "faster"]
    if not faster:
        return "none of these is surely faster here: leave compression off", BASELINE
    best = min(a.step_ms.middle for a in faster)
    chosen = max((a for a in faster if a.step_ms.middle <= _EQUALLY_FAST * best), key=lambda a: a.wire_bytes)
    speedup = 1 / chosen.ratio.middle
    return (
        f'HVDLITE_COMPRESSION={chosen.arm} (or compression="{chosen.arm}"): {speedup:.2f}x as fast as without '
        f"[{1 / chosen.ratio.high:.2f}, {1 / chosen.ratio.low:.2f}]; whether it hurts, hvdlite ab tells",
        chosen.arm,
    )
