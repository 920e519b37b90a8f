"""How actions are timed against each other, in the process that runs them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping

Action = Callable[[], object]


def there_and_back(names: Collection[str], rounds: int) -> Iterator[str]:
    """A B B A A B ...: whatever drifts in the machine falls on all alike."""
    for number in range(rounds):
        yield from list(names) if number % 2 == 0 else list(names)[::-1]


def seconds(action: Action, calls: int = 1) -> float:
    """What a call takes, the mean of a few in a row."""
    start = time.perf_counter()
    for _ in range(calls):
        action()
    return (time.perf_counter() - start) / calls


def alternated_ms(
    actions: Mapping[str, Action], rounds: int, block_seconds: float, *, together: Action = lambda: None, agreed: Callable[[float], float] = float
) -> dict[str, list[float]]:
    """Milliseconds a call of each action, once a round. An action is called as often as fits into a block, and at least once.

    Args:
        actions: what to time. Each is called twice before that.
        rounds: how often each gets its turn.
        block_seconds: how long a turn lasts, about.
        together: called before every turn; makes ranks begin at once.
        agreed: from this rank's number to one that is the same on all ranks, and is right for all.
    """
    calls, found = {}, {name: [] for name in actions}
    for name, action in actions.items():
        together()
        action()  # the first call may allocate, announce or load
        together()
        calls[name] = max(1, int(block_seconds / agreed(seconds(action))))
    for name in there_and_back(actions, rounds):
        together()
        found[name].append(1e3 * agreed(seconds(actions[name], calls[name])))
    return found
