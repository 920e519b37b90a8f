"""What has to be right before ``fit`` trains: the optimizer, the compiled step, the number of batches."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import keras

import hvdlite
from hvdlite import MismatchError, SettingError

from .optimizer import agree_on_overflow, exchange_of, link_of
from .variables import as_numpy, broadcast_model

LOG = logging.getLogger("hvdlite")


def make_ready(model: Any) -> None:
    """Before the step is compiled: one decision about overflows for all ranks, and a compiler that can call a communication library."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return
    agree_on_overflow(optimizer)
    if hvdlite.size() > 1 and keras.backend.backend() != "jax" and model.jit_compile:
        LOG.info("jit_compile=True: the step exchanges gradients, which neither XLA in TensorFlow nor torch.compile can call; it runs without")
        model.jit_compile = False
        model.train_function = None


def check_distributed(model: Any) -> None:
    """Raise for an optimizer that exchanges nothing.

    Raises:
        SettingError: ranks would train apart.
    """
    if hvdlite.size() > 1 and (model.trainable_variables or not model.built) and link_of(model.optimizer) is None:
        raise SettingError(
            f"model.optimizer is a {type(model.optimizer).__name__} that exchanges no gradients, so the ranks would train apart; one from "
            "hvd.DistributedOptimizer() is expected; pass it to the last model.compile(), or fit with hvd.DataParallel()"
        )


def check_steps(params: Mapping[str, Any]) -> None:
    """Compare the ranks' batches an epoch, where ``fit`` knows them.

    Raises:
        MismatchError: they differ, on every rank.
    """
    everyone = hvdlite.allgather_object(params.get("steps"), "keras.steps")
    known = {rank: steps for rank, steps in enumerate(everyone) if steps is not None}
    different = next((rank for rank, steps in known.items() if steps != next(iter(known.values()))), None)
    if different is not None:
        first = next(iter(known))
        raise MismatchError(
            f"rank {first} has {known[first]} batches an epoch and rank {different} has {known[different]}; the same number is expected, since all "
            f"ranks step together; shard the data with hvd.shard(...), or pass steps_per_epoch={min(known.values())}"
        )


def build_optimizer(model: Any) -> None:
    """Make the optimizer's variables. Keras does it before ``fit`` on other backends, and in the first step on TensorFlow.

    Raises:
        SettingError: the model itself has no variables yet.
    """
    if not model.built:
        raise SettingError(
            f"model {model.name!r} has no variables before its first step, so there is nothing to make equal on all ranks; a built model is expected; "
            "begin it with keras.layers.Input(shape), or call model.build(shape) before fit"
        )
    optimizer = model.optimizer
    if not optimizer.built:
        with keras.name_scope(optimizer.name, caller=optimizer):
            optimizer.build(model.trainable_variables)


def begin_late(model: Any) -> None:
    """The model gets its variables in the first step, and the ranks' become equal after it."""
    link = link_of(model.optimizer)
    if link is not None:
        link.is_late = True


def begin_together(model: Any, root_rank: int, local_variables: Sequence[Any] = ()) -> None:
    """Give every rank the root's variables but the local ones, and look that it worked."""
    broadcast_model(model, root_rank, local_variables)
    if not model.trainable_variables:
        return
    exchange = exchange_of(model.optimizer)
    exchange.is_late = False
    exchange.start(lambda: [as_numpy(v) for v in exchange.variables])
