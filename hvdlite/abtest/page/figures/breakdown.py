"""What a step is made of."""

from __future__ import annotations

from matplotlib.patches import Patch

from ...result import Result
from ._drawing import COMPUTE, DECODE, ENCODE, WIRE, Rows
from ._picture import Picture

PARTS = (("compute_ms", COMPUTE, "compute"), ("encode_ms", ENCODE, "encode"), ("wire_ms", WIRE, "wire"), ("decode_ms", DECODE, "decode"))


def step(result: Result) -> Picture | None:
    """Computing, and what was waited for: encoding, the wire, decoding."""
    arms = [(arm.arm, arm.parts) for arm in result.arms if arm.parts is not None]
    if not arms:
        return None
    rows = Rows([name for name, _ in arms])
    for row, (_, parts) in enumerate(arms):
        left = 0.0
        for name, colour, _ in PARTS:
            width = getattr(parts, name)
            rows.axes.barh(row, width, left=left, height=0.36, color=colour, lw=0)
            left += width
        rows.write_right(row, f"{left:.2f} ms")
    rows.axes.set_xlabel("ms a step")
    rows.axes.legend(handles=[Patch(color=c, label=text) for _, c, text in PARTS], ncols=4, loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False,
                     handlelength=1, handleheight=1, columnspacing=1.2, borderpad=0)  # fmt: skip
    said = "; ".join(f"{name}: " + ", ".join(f"{text} {getattr(parts, key):.2f} ms" for key, _, text in PARTS) for name, parts in arms)
    caption = (
        "Means of rank 0 after the warm-up. Encode, wire and decode are what the training waited for; the wire includes waiting for slower ranks. "
        "What the backward pass hid is not here but in the table; on a CPU it slows down computing."
    )
    return Picture("A step", caption, rows.svg("step", "Milliseconds of a step by what they were spent on, by arm", said))
