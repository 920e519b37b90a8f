"""``DataParallel``: one callback that makes ``model.fit`` data-parallel."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import keras

import hvdlite
from hvdlite import Average, ReduceOp, SettingError

from .averages import Samples, numbers, weighted_means
from .checkpoint import Checkpoint
from .compression import Compression
from .exchange import Options
from .fitting import begin_together, build_optimizer, check_steps, make_ready
from .optimizer import distribute, exchange_of, inner_of, link_of, make_options
from .order import check_judges_follow
from .variables import as_numpy

LOG = logging.getLogger("hvdlite")


class DataParallel(keras.callbacks.Callback):  # type: ignore[misc]
    """Train on all ranks as one: ``model.fit(x, y, callbacks=[hvd.DataParallel(), ...])``, first in the list.

    It distributes the model's optimizer, gives every rank the weights, optimizer state and seeds of ``root_rank``, averages metrics weighted by
    samples so that callbacks after it (EarlyStopping, ReduceLROnPlateau) decide alike on all ranks, lets all ranks stop together, and keeps one
    progress bar. Data comes from the script: see :func:`hvdlite.keras.shard`.

    Args:
        compression: a spec such as ``"topk:density=0.01"``, a Compressor, or ``Compression.x``.
        op: Average or Sum of the gradients.
        gradient_predivide_factor: as for ``DistributedOptimizer``.
        backward_passes_per_step: so many batches make one step.
        average_aggregated_gradients: divide the sum of their gradients by that number.
        groups: a number of groups, or lists of variables that must travel together.
        root_rank: whose variables, progress bar and checkpoints count.
        checkpoint_dir: a folder in which every epoch leaves the model's and the optimizer's variables, and what each rank's compressor remembers;
            a job that finds one there goes on from it.
    Raises:
        SettingError: an argument cannot be used; in ``fit``: the model is not compiled, was compiled anew in between, a callback that judges
            metrics comes before this one, or the ranks went apart.
        MismatchError: in ``fit``, on every rank: another model, or another number of batches.
    """

    def __init__(
        self,
        compression: Any = Compression.none,
        *,
        op: ReduceOp = Average,
        gradient_predivide_factor: float = 1.0,
        backward_passes_per_step: int = 1,
        average_aggregated_gradients: bool = False,
        groups: Any = None,
        root_rank: int = 0,
        checkpoint_dir: str | None = None,
    ):
        super().__init__()
        if not 0 <= root_rank < hvdlite.size():
            raise SettingError(f"root_rank={root_rank} does not exist; a rank from 0 to {hvdlite.size() - 1} is expected")
        self._options = make_options(
            compression=compression,
            op=op,
            gradient_predivide_factor=gradient_predivide_factor,
            backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients,
            groups=groups,
        )
        self._root_rank = root_rank
        self._checkpoint = None if checkpoint_dir is None else Checkpoint(checkpoint_dir, root_rank)
        self._samples = Samples()
        self._optimizer: Any = None

    def set_model(self, model: Any) -> None:
        """``fit`` calls it before it compiles the step, and knows the optimizer's variables already."""
        super().set_model(model)
        check_judges_follow(self)
        optimizer = getattr(model, "optimizer", None)
        if optimizer is None:
            raise SettingError("the model was not compiled; an optimizer is expected; call model.compile(...) before fit")
        link = link_of(optimizer)
        if link is not None and link.options.process_set.process_set_id != 0:
            raise SettingError(
                f"the optimizer exchanges in {link.options.process_set}, and hvd.DataParallel() trains on all ranks; an optimizer of all ranks is expected; "
                "use hvd.DistributedOptimizer(process_set=...) without the callback"
            )
        if link is None or (self._options not in (Options(), link.options)):
            distribute(optimizer, self._options)
            model.train_function = None  # one that was compiled before does not exchange
        make_ready(model)
        self._optimizer = optimizer

    def set_params(self, params: dict[str, Any]) -> None:
        """The progress bar, which Keras puts behind all other callbacks, reads the same dictionary: one bar is enough."""
        super().set_params(params)
        if params and hvdlite.rank() != self._root_rank:
            params["verbose"] = 0

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Check that the ranks fit together, restore a checkpoint, and start from one rank's variables."""
        self._check_optimizer()
        build_optimizer(self.model)
        if hvdlite.size() > 1:
            check_steps(self.params)
        if self._checkpoint is not None:
            self._checkpoint.restore(self.model)
        if hvdlite.size() > 1:
            begin_together(self.model, self._root_rank)
            is_own_step = type(self.model).train_step is keras.Model.train_step
            exchange_of(self._optimizer).watch(overlap=is_own_step and self._optimizer is inner_of(self._optimizer))

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Look that the model still has the optimizer that exchanges."""
        self._check_optimizer()

    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Note how many samples were trained on."""
        self._samples.begin_validation(self.model)

    def on_test_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Note how many samples were validated on."""
        self._samples.end_validation(self.model)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Average the metrics, in place; stop on all ranks when one is to stop; leave a checkpoint."""
        samples = self._samples.end_epoch(self.model)
        if hvdlite.size() > 1:
            rate = float(as_numpy(self._optimizer.learning_rate))
            self._wait_for_steps()
            exchange_of(self._optimizer).end()
            mine = (numbers(logs), samples, rate, bool(self.model.stop_training))
            everyone = hvdlite.allgather_object(mine, "keras.epoch")
            if logs is not None:
                logs.update(weighted_means([(metrics, counts) for metrics, counts, _, _ in everyone]))
            _check_rates([rate for _, _, rate, _ in everyone], epoch)
            self._stop_together([stops for _, _, _, stops in everyone], epoch)
        if self._checkpoint is not None:
            self._checkpoint.save(self.model, epoch)
        hvdlite.report(None, **numbers(logs))

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Look that no rank goes on."""
        if self._checkpoint is not None:
            self._checkpoint.forget_epoch(self.model)
        if hvdlite.size() > 1:
            self._wait_for_steps()
            exchange = exchange_of(self._optimizer)
            exchange.end()
            exchange.unwatch()

    def _wait_for_steps(self) -> None:
        """JAX runs ahead of Python: the last exchange is over once the number of steps is known."""
        as_numpy(self._optimizer.iterations)

    def _check_optimizer(self) -> None:
        if self.model.optimizer is not self._optimizer:
            raise SettingError(
                "the model was compiled anew after hvd.DataParallel() had distributed its optimizer, so the ranks would train apart; one optimizer is expected "
                "from the start of fit to its end; compile the model before fit, not in a callback"
            )

    def _stop_together(self, stops: Sequence[bool], epoch: int) -> None:
        asking = [rank for rank, stop in enumerate(stops) if stop]
        if asking and len(asking) < len(stops):
            self.model.stop_training = True
            if hvdlite.rank() == 0:
                LOG.warning(
                    "rank %d, not rank %d, asked to stop in epoch %d, and all ranks stop; if a callback judged the metrics of its own rank, put "
                    "hvd.DataParallel() before it", asking[0], stops.index(False), epoch + 1
                )  # fmt: skip


def _check_rates(rates: Sequence[float], epoch: int) -> None:
    other = next((rank for rank, rate in enumerate(rates) if rate != rates[0]), None)
    if other is not None:
        raise SettingError(
            f"after epoch {epoch + 1} the learning rate is {rates[0]:g} on rank 0 but {rates[other]:g} on rank {other}; it must be the same; a callback "
            "before hvd.DataParallel() judged the metrics of its own rank: put hvd.DataParallel() first in the list"
        )
