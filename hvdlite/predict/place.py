"""Where a forecast is for: how many ranks on how many hosts, and what joins them."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import SettingError
from ..link import Link

PAYLOAD_SHARE = 1448 / 1538
"""Of what passes over Ethernet: 1448 bytes of data in each frame of 1538, preamble and gap included."""


@dataclass(frozen=True)
class Place:
    """``link`` None: as fast as the system's own loopback. ``cores``: of each host."""

    num_ranks: int
    num_hosts: int
    cores: float
    link: Link | None = None
    burst_bytes: float = 0.0
    """What the link takes at once after a pause, where a token bucket limits its rate."""
    payload_share: float = PAYLOAD_SHARE

    def __post_init__(self) -> None:
        if self.num_hosts < 1 or self.num_ranks % self.num_hosts:
            raise SettingError(
                f"{self.num_ranks} ranks cannot be dealt evenly to {self.num_hosts} hosts; as many on each are expected; choose a multiple with --ranks"
            )
        if self.num_ranks < 2:
            raise SettingError(f"{self.num_ranks} ranks exchange nothing; at least 2 are expected; correct --ranks")

    @property
    def ranks_per_host(self) -> int:
        """On each."""
        return self.num_ranks // self.num_hosts

    @property
    def exchanging(self) -> int:
        """Ranks in an exchange of a compressor: one of each host where there are several, since those of a host add up in memory first."""
        return self.num_hosts if self.num_hosts > 1 else self.num_ranks

    @property
    def words(self) -> str:
        """For people."""
        ranks = f"{self.num_ranks} ranks on {self.num_hosts} host{'s' * (self.num_hosts > 1)}"
        if self.num_hosts == 1:
            return ranks
        return f"{ranks}, {self.link.spec if self.link is not None else 'links as fast as loopback'}"
