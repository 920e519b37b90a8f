"""A network link in words: ``1gbit``, or ``100mbit,delay=2ms``. Whoever makes links, or forecasts with them, reads them here."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from .errors import SettingError

_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_RATE = re.compile(_NUMBER + r"\s*([kmgt]?)bit(?:/s)?")
_DELAY = re.compile(_NUMBER + r"\s*(us|ms|s)")
_BITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_WRITE = "write e.g. 1gbit, 100mbit or 10gbit,delay=1ms"


@dataclass(frozen=True)
class Link:
    """What joins a host to the others."""

    bits_per_second: float
    """In each direction; the bits of everything on the link, headers included."""
    delay_seconds: float = 0.0
    """One way, from one host to another, beside what sending takes."""

    @property
    def spec(self) -> str:
        """What a user would type, e.g. ``1gbit,delay=500us``."""
        rate = _written(self.bits_per_second, {f"{unit}bit": factor for unit, factor in _BITS.items()})
        return rate + (f",delay={_written(self.delay_seconds, _SECONDS)}" if self.delay_seconds else "")


def parse_link(written: str) -> Link:
    """Read ``1gbit``, ``2.5gbit`` or ``100mbit,delay=2ms``. ``gbps`` is refused: tc means bytes by it, and everybody else bits.

    Raises:
        SettingError: it is none.
    """
    rate, *options = (part.strip() for part in written.split(","))
    found = _RATE.fullmatch(rate.lower())
    bits = float(found[1]) * _BITS[found[2]] if found else math.nan
    if not 0 < bits < math.inf:
        raise SettingError(f"link {written!r} cannot be read: {rate!r} is no rate above 0 with its unit (bit, kbit, mbit, gbit); {_WRITE}")
    delay = 0.0
    for option in options:
        name, _, value = option.partition("=")
        if name.strip() != "delay":
            raise SettingError(f"link {written!r} cannot be read: {option!r} is no option of a link; only delay=... may follow the rate; {_WRITE}")
        matched = _DELAY.fullmatch(value.strip().lower())
        if not matched:
            raise SettingError(f"link {written!r} cannot be read: {value!r} is no delay; a number with its unit (us, ms, s) is expected; {_WRITE}")
        delay = float(matched[1]) * _SECONDS[matched[2]]
    return Link(bits, delay)


def _written(value: float, units: dict[str, float]) -> str:
    """In the largest unit that leaves a number of at least 1."""
    unit = max((u for u in units if value >= units[u]), key=lambda u: units[u], default=min(units, key=lambda u: units[u]))
    return f"{value / units[unit]:.9g}{unit}"
