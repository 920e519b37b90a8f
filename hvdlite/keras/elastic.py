"""Elastic training with Keras 3, on each of its backends: ``hvd.elastic``. Names, arguments and meaning are Horovod's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

import hvdlite
from hvdlite.elastic import ObjectState, State, run

from .optimizer import link_of
from .variables import as_numpy, broadcast_model, broadcast_variables

__all__ = ["CommitStateCallback", "KerasState", "State", "TensorFlowKerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]


class KerasState(ObjectState):
    """A model, its optimizer, and plain objects: ``KerasState(model, epoch=0, batch=0)`` has them as attributes.

    Args:
        model: a built model.
        optimizer: where it is not compiled into the model.
        kwargs: names and first values of plain objects.
    Raises:
        ValueError: the model has no variables yet.
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any):
        if not model.built:
            raise ValueError("Model must be built first. Run `model.build(input_shape)`.")
        self.model = model
        compiled = getattr(model, "optimizer", None)  # Keras has no such attribute before compile()
        self.optimizer = compiled if optimizer is None else optimizer
        if self.optimizer is not None and not self.optimizer.built:
            with keras.name_scope(self.optimizer.name, caller=self.optimizer):
                self.optimizer.build(model.trainable_variables)
        self._saved_variables: list[Any] = []
        self._save_model()
        super().__init__(hvdlite.broadcast_object, hvdlite.rank, **kwargs)

    def save(self) -> None:
        """Copy the variables and the objects."""
        self._save_model()
        super().save()

    def restore(self) -> None:
        """Assign the copies."""
        for variable, value in zip(self._variables(), self._saved_variables, strict=True):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Give every rank the variables and objects of rank 0, and save them."""
        broadcast_model(self.model)
        if self.optimizer is not None and self.optimizer is not getattr(self.model, "optimizer", None):
            broadcast_variables(self.optimizer.variables)
        self._save_model()
        super().sync()

    def reset(self) -> None:
        """Exchange gradients with the new ranks."""
        link = None if self.optimizer is None else link_of(self.optimizer)
        if link is not None and link.exchange is not None:
            link.exchange.unwatch()
            link.loaded, link.exchange = link.exchange.state_dict(), None
            self.model.train_function = None  # one that was compiled before has the old exchange in it

    def snapshot(self) -> Any:
        """The copies."""
        return self._saved_variables, super().snapshot()

    def load_snapshot(self, saved: Any) -> None:
        """Assign them."""
        self._saved_variables, plain = saved
        super().load_snapshot(plain)
        self.restore()

    def _save_model(self) -> None:
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()  # in the middle of an epoch JAX holds the variables' values elsewhere
        self._saved_variables = [as_numpy(v) for v in self._variables()]

    def _variables(self) -> list[Any]:
        return [*self.model.variables, *(() if self.optimizer is None else self.optimizer.variables)]


class TensorFlowKerasState(KerasState):
    """The same by the name it has in ``hvdlite.tensorflow.elastic``; ``backend`` is ignored."""

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any):
        super().__init__(model, optimizer, **kwargs)


class CommitStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Commit a state after every ``batches_per_commit`` batches, and at the end of epochs.

    It does so when all callbacks have seen that end, just before what comes next: wherever it stands in the list, batches and epochs are counted by then.
    """

    def __init__(self, state: State, batches_per_commit: int = 1):
        super().__init__()
        self.state, self.batches_per_commit = state, batches_per_commit
        self.batches_remaining = batches_per_commit
        self._is_due = False

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Count anew, so that ranks which were there before count as those that were not."""
        self.batches_remaining, self._is_due = self.batches_per_commit, False

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Count."""
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.batches_remaining, self._is_due = self.batches_per_commit, True

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """It is time."""
        self._is_due = True

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Commit, if it is time."""
        self._commit()

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Commit, if it is time."""
        self._commit()

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Commit, if it is time."""
        self._commit()

    def _commit(self) -> None:
        if self._is_due:
            self._is_due = False
            self.state.commit()


class _EndOfEpoch:
    """As ``stop_training`` it ends the epoch, and is told apart from the True of a callback that ends the training."""

    def __bool__(self) -> bool:
        return True


class UpdateBatchStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Keep ``state.batch``: how many batches of the epoch are done. The first epoch after a reset is shorter by it, where ``fit`` knows its length.

    Data must then go on behind them: ``dataset.skip(state.batch)``.
    """

    def __init__(self, state: Any):
        super().__init__()
        self.state = state
        self._done = 0  # batches of this epoch that were processed before the reset
        self._end_of_epoch = _EndOfEpoch()

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """The state says where the epoch was."""
        self._done = self.state.batch

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Note the batch, and end an epoch of which the rest was processed before."""
        self.state.batch = self._done + batch + 1
        steps = self.params.get("steps")
        if self._done and steps and self.state.batch >= steps and not self.model.stop_training:
            self.model.stop_training = self._end_of_epoch

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """The next epoch is a whole one."""
        self.state.batch = self._done = 0
        if self.model.stop_training is self._end_of_epoch:
            self.model.stop_training = False


class UpdateEpochStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Keep ``state.epoch``: epochs that are complete, over all resets; ``fit`` gets ``epochs=all_epochs - state.epoch``."""

    def __init__(self, state: Any):
        super().__init__()
        self.state = state
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Keras counts from 0 in each ``fit``."""
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """One more."""
        self.state.epoch = self.initial_epoch + epoch + 1
