"""What programs with graphs and sessions (TensorFlow 1, ``tf.compat.v1``) use: a broadcast of all variables, and an optimizer."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

import hvdlite
from hvdlite import SettingError

from .errors import NotSupportedError
from .functions import broadcast_variables
from .tape import Options, scaled


def broadcast_global_variables(root_rank: int) -> tf.Operation:
    """An operation of the graph that overwrites all its variables with those of ``root_rank``.

    Raises:
        RuntimeError: TensorFlow executes eagerly, where there is no list of all variables.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "broadcast_global_variables() was called where TensorFlow executes eagerly and keeps no list of all variables; a graph is expected; "
            "use hvd.broadcast_variables(model.variables, root_rank=0)"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Broadcasts all variables when a monitored session has been made, whether they were initialized or restored.

    Args:
        root_rank: the rank whose values everybody gets.
        device: ignored.
    """

    def __init__(self, root_rank: int, device: str = ""):
        self.root_rank, self.device = root_rank, device
        self.bcast_op: tf.Operation | None = None

    def begin(self) -> None:
        """Add the broadcast to the graph that will be run."""
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run it."""
        session.run(self.bcast_op)


class SessionOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """An optimizer of TensorFlow 1 whose ``compute_gradients`` gives the gradients of all ranks; :func:`hvdlite.tensorflow.DistributedOptimizer` makes it.

    Args:
        optimizer: takes the steps, and keeps its slots.
        name: names it in the graph.
        use_locking: as for any optimizer.
        options: how gradients are exchanged.
        scale_local: divide gradients of local variables by the number of ranks.
    """

    def __init__(self, optimizer: Any, name: str | None, use_locking: bool, options: Options, scale_local: bool):
        super().__init__(name=name or f"Distributed{type(optimizer).__name__}", use_locking=use_locking)
        self._optimizer, self._options, self._scale_local = optimizer, options, scale_local
        self._local: dict[int, Any] = {}

    def register_local_var(self, var: Any) -> None:
        """Keep the gradient of this variable to this rank."""
        self._local[id(var)] = var

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Pairs of gradient and variable, as of any optimizer; every rank calls it, and runs it, equally often."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        shared = [i for i, (_, v) in enumerate(pairs) if id(v) not in self._local]
        found = dict(enumerate(g for g, _ in pairs))
        channel = hvdlite.world().partners(self._options.process_set)
        if channel is not None and shared:
            exchange = self._options.exchange_for([pairs[i][1] for i in shared])
            found.update(zip(shared, exchange.exchange([found[i] for i in shared]), strict=True))
        if self._scale_local and channel is not None:
            found |= {i: scaled(g, 1.0 / channel.topology.size) for i, g in found.items() if i not in shared and g is not None}
        return [(found[i], v) for i, (_, v) in enumerate(pairs)]

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """A step of the optimizer."""
        return self._optimizer.apply_gradients(grads_and_vars, global_step=global_step, name=name)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """That of the optimizer."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """Those of the optimizer."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """Those of the optimizer."""
        return self._optimizer.variables(*args, **kwargs)


def check_passes(backward_passes_per_step: int) -> None:
    """Raise for several passes a step, which need variables and branches in the graph.

    Raises:
        NotSupportedError: it is more than one.
        SettingError: it is less.
    """
    if backward_passes_per_step < 1:
        raise SettingError(f"backward_passes_per_step={backward_passes_per_step}; at least 1 is expected")
    if backward_passes_per_step > 1:
        raise NotSupportedError(
            f"backward_passes_per_step={backward_passes_per_step} with an optimizer of tf.compat.v1.train; 1 is expected; "
            "use a Keras optimizer, which accumulates, or add up the gradients in the program"
        )
