"""``ElasticSampler``: deals a dataset to the ranks, and what is left of it to other ranks after a reset."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sized
from itertools import cycle, islice

import torch

from hvdlite import rank, size


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Every index once an epoch, over all ranks; the first ones come again where ranks would get different numbers.

    Keep it in a ``TorchState``, call :meth:`record_batch` after each batch, and :meth:`set_epoch` at the END of an epoch: then a reset within an epoch deals
    exactly what no rank has processed.

    Args:
        dataset: of a size that stays.
        shuffle: another order each epoch.
        seed: of the order, the same on every rank.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0):
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch: nothing of it is processed."""
        self.epoch, self.processed_num = epoch, 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Every rank has processed ``batch_size`` samples more. They are not left out before the next :meth:`reset`, :meth:`load_state_dict` or sync."""
        self.processed_num += batch_size * self.num_replicas

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Go to an epoch and a place in it."""
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def state_dict(self) -> dict[str, int]:
        """The epoch, and how many of its samples all ranks together have processed."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def reset(self) -> None:
        """Deal what is not processed to the ranks there are now."""
        self.num_replicas, self.rank = size(), rank()
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        self.remaining_indices = indices[self.processed_num :]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        dealt = list(islice(cycle(self.remaining_indices), self.total_size))
        return iter(dealt[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples
