"""What is sent."""

from __future__ import annotations

from ...result import Result
from ...words import in_bytes
from ._drawing import Rows, colour
from ._picture import Picture


def wire_bytes(result: Result) -> Picture | None:
    """Bytes a step of rank 0."""
    arms = [(i, arm.arm, arm.wire_bytes_per_step) for i, arm in enumerate(result.arms) if arm.wire_bytes_per_step is not None]
    if not arms or not any(sent for _, _, sent in arms):
        return None
    rows = Rows([name for _, name, _ in arms])
    baseline = result.arms[0].wire_bytes_per_step
    for row, (index, _, sent) in enumerate(arms):
        rows.axes.barh(row, sent, height=0.36, color=colour(index), lw=0)
        times = f", {baseline / sent:.3g} times fewer" if baseline and index and sent and sent < baseline else ""
        rows.write_right(row, in_bytes(sent) + times)
    rows.axes.set_xlabel("bytes that rank 0 sends in a step")
    rows.axes.xaxis.set_major_formatter(lambda value, _: in_bytes(value))
    rows.axes.locator_params(axis="x", nbins=5)
    said = "; ".join(f"{name}: {in_bytes(sent)}" for _, name, sent in arms)
    return Picture("Bytes", "Payload of rank 0, indices and scales included, negotiation not.", rows.svg("bytes", "Bytes on the wire in a step, by arm", said))
