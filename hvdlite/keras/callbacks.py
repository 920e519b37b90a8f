"""Horovod's callbacks. :class:`hvdlite.keras.DataParallel` does the work of the first two and more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import keras

import hvdlite
from hvdlite import SettingError

from .averages import Samples, average_logs
from .fitting import begin_late, begin_together, build_optimizer, check_distributed, check_steps, make_ready
from .optimizer import inner_of
from .order import check_judges_follow
from .variables import as_numpy

LOG = logging.getLogger("hvdlite")


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Give every rank the weights, the optimizer's state and the seeds of ``root_rank`` before the first step; after it, where that builds the model.

    Args:
        root_rank: whose variables count.
        device: ignored.
        local_variables: variables of the model that each rank keeps to itself. Register those that are trained with the optimizer, too.
    Raises:
        SettingError: in ``fit``: the optimizer exchanges nothing.
        MismatchError: in ``fit``: the ranks have different models or numbers of batches.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None):
        super().__init__()
        self.root_rank, self._local_variables, self._is_late = root_rank, list(local_variables or ()), False

    def register_local_var(self, var: Any) -> None:
        """Keep this variable to this rank."""
        self._local_variables.append(var)

    def set_model(self, model: Any) -> None:
        """``fit`` calls it before it compiles the step."""
        super().set_model(model)
        make_ready(model)

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Broadcast, if Keras has built the model before."""
        if hvdlite.size() > 1:
            check_distributed(self.model)
            check_steps(self.params)
            self._is_late = not self.model.built
            if self._is_late:
                begin_late(self.model)
            else:
                build_optimizer(self.model)
                begin_together(self.model, self.root_rank, self._local_variables)

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Broadcast after the first step, if that has built the model: what each rank did in it does not count."""
        if self._is_late:
            self._is_late = False
            begin_together(self.model, self.root_rank, self._local_variables)


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Average metrics over the ranks at the end of an epoch, weighted by samples. Callbacks after it see the averages.

    Raises:
        SettingError: in ``fit``: a callback that judges metrics (EarlyStopping, ReduceLROnPlateau, ModelCheckpoint) comes before it.
    """

    def __init__(self, device: str = ""):
        super().__init__()
        self._samples = Samples()

    def set_model(self, model: Any) -> None:
        """``fit`` calls it before it trains: look that no callback judges metrics before they are averaged."""
        super().set_model(model)
        check_judges_follow(self)

    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Note how many samples were trained on."""
        self._samples.begin_validation(self.model)

    def on_test_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Note how many samples were validated on."""
        self._samples.end_validation(self.model)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Replace the metrics by those of all ranks, in place."""
        samples = self._samples.end_epoch(self.model)
        if hvdlite.size() > 1 and logs is not None:
            average_logs(logs, samples)


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Set the learning rate to ``initial_lr * multiplier(epoch)`` from ``start_epoch`` to before ``end_epoch``.

    Args:
        initial_lr: the rate that is multiplied.
        multiplier: a number, or a function of the epoch (a fraction of it, without ``staircase``).
        start_epoch: the first epoch.
        end_epoch: the epoch after the last; None for all that follow.
        staircase: change the rate at the start of epochs; False: before every batch.
        momentum_correction: scale what SGD has gathered as momentum with the rate, as it is kept in units of it (Goyal et al. 2017, remark 2).
        steps_per_epoch: batches in an epoch, where ``fit`` cannot know.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ):
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        self.initial_lr, self.start_epoch, self.end_epoch = initial_lr, start_epoch, end_epoch
        self.staircase = staircase or not callable(multiplier)
        self.momentum_correction, self.steps_per_epoch = momentum_correction, steps_per_epoch
        self.multiplier: Callable[[float], float] = multiplier if callable(multiplier) else lambda epoch: multiplier
        self.current_epoch = 0

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Find the batches in an epoch."""
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ValueError(
                    f"fit does not know the batches of an epoch, of which {type(self).__name__} takes fractions; steps_per_epoch is expected; pass it"
                )

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Set the rate of the epoch."""
        self.current_epoch = epoch
        if self.staircase and self._applies:
            self._set_rate(epoch)

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Set the rate of the batch."""
        if not self.staircase and self._applies:
            assert self.steps_per_epoch
            self._set_rate(self.current_epoch + batch / self.steps_per_epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Add the rate to the metrics."""
        if logs is not None:
            logs["lr"] = _rate_of(self.model.optimizer)

    @property
    def _applies(self) -> bool:
        return self.start_epoch <= self.current_epoch and (self.end_epoch is None or self.current_epoch < self.end_epoch)

    def _set_rate(self, epoch: float) -> None:
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()  # in the middle of an epoch JAX holds the variables' values elsewhere
        optimizer, rate = self.model.optimizer, self.initial_lr * self.multiplier(epoch)
        before = _rate_of(optimizer)
        try:
            optimizer.learning_rate = rate
        except TypeError as error:
            raise SettingError(
                f"{type(self).__name__} cannot set the learning rate of {optimizer.name!r}, which follows a schedule of its own; a number is expected; "
                "compile the model with learning_rate=<number>, or leave the callback out"
            ) from error
        after = _rate_of(optimizer)
        if self.momentum_correction and before and after != before:
            _scale_momentum(optimizer, after / before)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raise the learning rate from ``initial_lr / size()`` to ``initial_lr`` over the first epochs, batch by batch (Goyal et al. 2017).

    Args:
        initial_lr: the rate to arrive at, already multiplied by the number of ranks.
        warmup_epochs: how long it takes.
        momentum_correction: as in :class:`LearningRateScheduleCallback`.
        steps_per_epoch: batches in an epoch, where ``fit`` cannot know.
        verbose: 1: rank 0 says when it has arrived.
    """

    def __init__(self, initial_lr: float, warmup_epochs: int = 5, momentum_correction: bool = True, steps_per_epoch: int | None = None, verbose: int = 0):
        def multiplier(epoch: float) -> float:
            assert self.steps_per_epoch
            done = epoch + 1.0 / self.steps_per_epoch  # so that the last batch has the whole rate
            return 1.0 / hvdlite.size() * (done * (hvdlite.size() - 1) / warmup_epochs + 1) if warmup_epochs else 1.0

        super().__init__(
            initial_lr, multiplier, end_epoch=warmup_epochs, staircase=False, momentum_correction=momentum_correction, steps_per_epoch=steps_per_epoch
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Say that the warm-up is over."""
        super().on_epoch_end(epoch, logs)
        if self.end_epoch and epoch == self.end_epoch - 1 and self.verbose and hvdlite.rank() == 0:
            LOG.info("epoch %d: finished gradual learning rate warmup to %g", epoch + 1, _rate_of(self.model.optimizer))


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """``keras.callbacks.ModelCheckpoint(save_best_only=True)`` that writes on rank 0 only. Put it after the callback that averages metrics.

    Args:
        monitor: the metric that tells which model is best.
        verbose: 1: say when a model is saved.
        save_weights_only: leave architecture and optimizer out; ``filepath`` then ends in ``.weights.h5``.
        mode: ``min``, ``max``, or ``auto``: by the metric's name.
        save_freq: ``"epoch"``, or a number of batches.
        filepath: where to; it may also be set later, as Horovod's Spark estimator does.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
        *,
        filepath: str | None = None,
    ):
        default = "best.weights.h5" if save_weights_only else "best.keras"
        super().__init__(
            filepath or default, monitor=monitor, verbose=verbose, save_best_only=True, save_weights_only=save_weights_only, mode=mode, save_freq=save_freq
        )

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Save, on rank 0, where ``save_freq`` counts batches."""
        if hvdlite.rank() == 0:
            super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Save, on rank 0, a model that is better than those before."""
        if hvdlite.rank() == 0:
            super().on_epoch_end(epoch, logs)


def _rate_of(optimizer: Any) -> float:
    return float(as_numpy(optimizer.learning_rate))


def _scale_momentum(optimizer: Any, factor: float) -> None:
    """Keras's SGD gathers steps, not gradients: those of before were taken at another rate."""
    inner = inner_of(optimizer)
    if isinstance(inner, keras.optimizers.SGD) and inner.momentum and inner.built:
        for momentum in inner.momentums:
            momentum.assign(momentum * factor)
