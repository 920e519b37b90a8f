"""What ranks of an elastic job share: it is committed, restored, and given to all."""

from __future__ import annotations

import copy
import queue
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import HostsUpdatedInterrupt
from .notifications import HostUpdateResult


class State:
    """What a training must not lose. Subclasses say how it is saved, restored and shared.

    Args:
        bcast_object: gives an object of rank 0 to every rank.
        get_rank: this process's rank.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]):
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.Queue[tuple[float, int]] = queue.Queue()
        self._last_updated_timestamp = 0.0
        self._reset_callbacks: list[Callable[[], Any]] = []
        self._num_commits = 0
        self._keep: Callable[[State], None] | None = None  # where commits go beyond this process

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], Any]]) -> None:
        """Call these after the number of ranks has changed, before the state is shared: to scale the learning rate, say."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """The ranks are others now: forget old notes, and call what was registered."""
        self._host_messages = queue.Queue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Hosts were added or removed (bits of ``HostUpdateResult``); the next :meth:`check_host_updates` tells the training."""
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Save, so that a failure costs what comes after; then :meth:`check_host_updates`. Every rank calls it.

        Raises:
            HostsUpdatedInterrupt: the hosts have changed.
        """
        self.save()
        self._num_commits += 1
        if self._keep is not None:
            self._keep(self)
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raise on all ranks if rank 0 has heard of other hosts. Every rank calls it.

        Raises:
            HostsUpdatedInterrupt: it has.
        """
        before = latest = self._last_updated_timestamp
        change = HostUpdateResult.no_update
        while not self._host_messages.empty():
            timestamp, update = self._host_messages.get()
            if timestamp > latest:
                latest = timestamp
                change |= HostUpdateResult(update)
        before, self._last_updated_timestamp, change = self._bcast_object((before, latest, change))
        if self._last_updated_timestamp > before:
            raise HostsUpdatedInterrupt(change == HostUpdateResult.removed)

    def save(self) -> None:
        """Remember the state as it is."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to what was saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Give every rank the state of rank 0."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapt to the new ranks; before the state is shared."""

    def snapshot(self) -> Any:
        """What was saved last, to be pickled, so that other processes can go on from it; None: they cannot."""
        return None

    def load_snapshot(self, saved: Any) -> None:
        """Take what :meth:`snapshot` gave as saved, and go back to it."""
        raise NotImplementedError


class ObjectState(State):
    """Python objects, each an attribute: ``ObjectState(..., epoch=0)`` has ``state.epoch``.

    Args:
        bcast_object: gives an object of rank 0 to every rank.
        get_rank: this process's rank.
        kwargs: names and first values; anything that can be copied and pickled.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **kwargs: Any):
        super().__init__(bcast_object=bcast_object, get_rank=get_rank)
        for name, value in kwargs.items():
            setattr(self, name, value)
        self._saved_state: dict[str, Any] = copy.deepcopy(kwargs)

    def save(self) -> None:
        """Remember copies: what changes in place afterwards is not what was saved."""
        self._saved_state = copy.deepcopy({name: getattr(self, name) for name in self._saved_state})

    def restore(self) -> None:
        """Set the attributes to copies of what was saved."""
        for name, value in copy.deepcopy(self._saved_state).items():
            setattr(self, name, value)

    def sync(self) -> None:
        """Give every rank the attributes of rank 0, as they are there now, and save them."""
        if self._saved_state:
            self._saved_state = self._bcast_object({name: getattr(self, name) for name in self._saved_state})
            self.restore()

    def snapshot(self) -> Any:
        """The saved attributes."""
        return self._saved_state

    def load_snapshot(self, saved: Any) -> None:
        """Those of them that this state has."""
        self._saved_state |= {name: value for name, value in saved.items() if name in self._saved_state}
        ObjectState.restore(self)
