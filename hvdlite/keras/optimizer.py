"""``DistributedOptimizer``: the user's Keras optimizer, stepping on the mean gradient of all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import keras

import hvdlite
from hvdlite import Average, ProcessSet, ReduceOp, SettingError, Sum, global_process_set
from hvdlite.agreement import override

from ._backends import exchange_class
from .compression import Compression
from .exchange import Exchange, Options


@dataclass
class Link:
    """What an optimizer that exchanges carries."""

    options: Options
    scale_local: bool = True
    local: dict[int, Any] = field(default_factory=dict)
    """Variables that each rank keeps to itself, by id."""
    is_late: bool = False
    """Weights become equal after the first step only."""
    exchange: Exchange | None = None
    loaded: Mapping[str, Any] | None = None
    """The state of an earlier run, until there is an exchange to take it."""
    is_wrapped: bool = False
    """A LossScaleOptimizer has it as its inner one ..."""
    is_agreed: bool = False
    """... and asks all ranks whether gradients are finite."""


class _Distributed(keras.optimizers.Optimizer):  # type: ignore[misc]
    """What an optimizer's class gains in front of its own methods. ``from_config`` makes one without a link, which works as the original."""

    _hvdlite: Link | None = None

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The user's class: it is what a saved model names, so that it loads without hvdlite."""
        return type(self).__bases__[1]

    def __setattr__(self, name: str, value: Any) -> None:
        """A LossScaleOptimizer takes ``loss_scale_factor`` from the optimizer it wraps, which thereby learns that it is wrapped."""
        if name == "loss_scale_factor" and value is None and self._hvdlite is not None:
            self._hvdlite.is_wrapped = True
        super().__setattr__(name, value)

    def register_local_var(self, var: Any) -> None:
        """Keep the gradients of this variable to this rank."""
        assert self._hvdlite is not None
        self._hvdlite.local[id(var)] = var

    def apply(self, grads: Iterable[Any], trainable_variables: Iterable[Any] | None = None) -> None:
        """Exchange the gradients, then step.

        Raises:
            SettingError: ranks would decide on their own whether to skip the step.
        """
        grads, link = list(grads), self._hvdlite
        variables = None if trainable_variables is None else list(trainable_variables)
        if link is None or not grads:
            super().apply(grads, variables)
        elif hvdlite.world().partners(link.options.process_set) is None:
            times = 1 if link.options.average_passes else link.options.passes  # Keras divides by them
            super().apply(grads if times == 1 else [None if g is None else g * times for g in grads], variables)
        else:
            super().apply(self._exchanged(link, grads, variables), variables)

    def _exchanged(self, link: Link, grads: Sequence[Any], variables: Sequence[Any] | None) -> list[Any]:
        if link.is_wrapped and not link.is_agreed:
            raise SettingError(
                f"a LossScaleOptimizer wraps {self.name!r}, which was distributed before, so each rank decides alone whether to skip a step; one decision for "
                "all is expected; call hvd.DistributedOptimizer() on the LossScaleOptimizer, or fit with hvd.DataParallel()"
            )
        if not self.built:
            with keras.name_scope(self.name, caller=self):
                self.build(variables)
        own = self._trainable_variables
        if variables is not None:
            self._check_variables_are_known(variables)
            own = [own[self._get_variable_index(v)] for v in variables]
        results = [_kept(link, g) if id(v) in link.local else None for v, g in zip(own, grads, strict=True)]
        if all(id(v) in link.local for v in self._trainable_variables):
            return results
        exchange = exchange_of(self)
        place_of = {id(v): place for place, v in enumerate(exchange.variables)}
        given: list[Any] = [None] * len(exchange.variables)
        for variable, gradient in zip(own, grads, strict=True):
            if id(variable) in place_of:
                given[place_of[id(variable)]] = gradient
        means = exchange.mean(given)
        return [means[place_of[id(v)]] if id(v) in place_of else kept for v, kept in zip(own, results, strict=True)]


def _kept(link: Link, gradient: Any) -> Any:
    """The gradient of a local variable, in units in which it and the exchanged ones move alike."""
    passes = 1 if link.options.average_passes else link.options.passes  # Keras divides by them
    partners = hvdlite.world().partners(link.options.process_set) if link.scale_local else None
    factor = passes / (1 if partners is None else partners.topology.size)
    return gradient if gradient is None or factor == 1.0 else keras.ops.convert_to_tensor(gradient) * factor


class _Agreeing(keras.optimizers.LossScaleOptimizer):  # type: ignore[misc]
    """What a LossScaleOptimizer gains: gradients are finite when they are on every rank. The inner optimizer exchanges them, without their scale."""

    _agrees = False

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The user's class, as for every distributed optimizer."""
        return type(self).__bases__[1]

    def register_local_var(self, var: Any) -> None:
        """Keep the gradients of this variable to this rank."""
        self.inner_optimizer.register_local_var(var)

    def check_finite(self, grads: Sequence[Any]) -> Any:
        """Whether all ranks' gradients are finite."""
        finite, link = super().check_finite(grads), link_of(self.inner_optimizer)
        if not self._agrees or link is None or hvdlite.world().partners(link.options.process_set) is None:
            return finite
        return exchange_of(self.inner_optimizer).all_finite(finite)


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Make an optimizer step on the mean gradient of all ranks. It stays the same object, with its state, its name and its class.

    ``HVDLITE_COMPRESSION`` replaces ``compression``.

    Args:
        optimizer: any Keras optimizer, also a LossScaleOptimizer: an overflow on one rank then skips the step on all.
        name: names the exchange in errors; without it, the n-th optimizer of every rank belongs together.
        device_dense: ignored, as everything lies in main memory.
        device_sparse: ignored.
        compression: a spec such as ``"topk:density=0.01"``, a Compressor, or ``Compression.x``.
        sparse_as_dense: sparse gradients always travel dense; accepted for Horovod's sake.
        gradient_predivide_factor: divide by this before the sum, and by the rest of the number of ranks after it.
        op: Average or Sum.
        backward_passes_per_step: so many batches make one step; they are added up and exchanged once.
        average_aggregated_gradients: divide their sum by ``backward_passes_per_step``.
        num_groups: deprecated form of ``groups``.
        groups: a number of groups, or lists of variables that must travel together.
        process_set: the ranks that exchange; on the others the optimizer steps on its own gradients.
        scale_local_gradients: divide gradients of variables given to the optimizer's ``register_local_var`` by the number of ranks.
    Raises:
        SettingError: an argument has a value that cannot be used.
        CompressionError: the compressor does not exist, or (at the first step) makes no sense for these variables.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise SettingError(f"optimizer={optimizer!r}; a keras.optimizers.Optimizer is expected; pass e.g. keras.optimizers.SGD(0.01)")
    options = make_options(
        name=name,
        compression=compression,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        groups=groups or num_groups,
        process_set=process_set,
    )
    distribute(optimizer, options)
    link = link_of(optimizer)
    assert link is not None
    link.scale_local = scale_local_gradients
    return optimizer


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """:func:`DistributedOptimizer` for a model with layers that each rank keeps to itself.

    Args:
        optimizer: as there.
        name: as there.
        device_dense: ignored.
        device_sparse: ignored.
        compression: as there.
        sparse_as_dense: as there.
        gradient_predivide_factor: as there.
        op: as there.
        backward_passes_per_step: as there.
        average_aggregated_gradients: as there.
        groups: as there.
        process_set: as there.
        local_layers: a built layer or several, whose gradients are not exchanged.
        scale_local_gradients: divide their gradients by the number of ranks, so that both kinds move alike.
    Raises:
        ValueError: something else than layers is given.
    """
    layers = [] if local_layers is None else list(local_layers) if isinstance(local_layers, (list, tuple, set)) else [local_layers]
    if not all(isinstance(layer, keras.layers.Layer) for layer in layers):
        raise ValueError(f"local_layers={local_layers!r}; a keras.layers.Layer or a list of them is expected; pass e.g. local_layers=model.layers[:1]")
    distributed = DistributedOptimizer(
        optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op, backward_passes_per_step,
        average_aggregated_gradients, 0, groups, process_set, scale_local_gradients,
    )  # fmt: skip
    for layer in layers:
        for variable in layer.trainable_weights:
            distributed.register_local_var(variable)
    return distributed


def make_options(
    *,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
) -> Options:
    """Check what a user asked for."""
    op = ReduceOp(op)
    if op not in (Average, Sum):
        raise SettingError(f"op={op.name} of gradients with a Keras optimizer, as in Horovod; Average or Sum is expected; leave it out")
    if gradient_predivide_factor != 1.0 and op is not Average:
        raise SettingError(f"gradient_predivide_factor={gradient_predivide_factor} with op={op.name}; it splits the division of Average; leave one out")
    if backward_passes_per_step < 1:
        raise SettingError(f"backward_passes_per_step={backward_passes_per_step}; at least 1 is expected; leave it out to step after every batch")
    if hvdlite.is_initialized():
        hvdlite.world().partners(process_set)  # raises for a set that is not registered
    resolved = Compression.resolve(compression)
    chosen = override(compression, resolved)
    return Options(
        name=name,
        compression=resolved if chosen is compression else chosen,
        op=op,
        predivide=gradient_predivide_factor,
        passes=backward_passes_per_step,
        average_passes=average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
    )


def distribute(optimizer: Any, options: Options) -> None:
    """Turn an optimizer into one that exchanges. Its class changes, so that its own methods keep working on the same object."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        if link_of(optimizer.inner_optimizer) is None:
            distribute(optimizer.inner_optimizer, options)
        agree_on_overflow(optimizer)
        return
    options = _with_accumulation(optimizer, options)
    _gain(optimizer, _Distributed)
    optimizer._hvdlite = Link(options)


def agree_on_overflow(optimizer: Any) -> None:
    """Let a LossScaleOptimizer around a distributed optimizer skip steps on all ranks together; other optimizers stay as they are."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        link = link_of(optimizer.inner_optimizer)
        if link is not None:
            _gain(optimizer, _Agreeing)
            optimizer._agrees = True
            link.is_wrapped = link.is_agreed = True


def _gain(optimizer: Any, abilities: type) -> None:
    if not issubclass(type(optimizer), abilities):
        kind = type(optimizer)
        object.__setattr__(optimizer, "__class__", type(kind.__name__, (abilities, kind), {"__module__": kind.__module__}))


def _with_accumulation(optimizer: Any, options: Options) -> Options:
    """Keras adds up gradients and skips updates between; it is handed zeros until the last pass, and what was exchanged then."""
    own = optimizer.gradient_accumulation_steps
    if options.passes == 1:
        return replace(options, passes=own, average_passes=True) if own else options
    if own not in (None, options.passes):
        raise SettingError(
            f"backward_passes_per_step={options.passes}, and the optimizer has gradient_accumulation_steps={own}; they mean the same; give one of them"
        )
    if own is None:
        optimizer.gradient_accumulation_steps = options.passes
        if optimizer.built:
            with keras.name_scope(optimizer.name, caller=optimizer):
                optimizer._accumulated_gradients = [
                    optimizer.add_variable_from_reference(v, name="gradient_accumulator") for v in optimizer._trainable_variables
                ]
    return options


def link_of(optimizer: Any) -> Link | None:
    """What makes an optimizer exchange, or the one it wraps; None for one that does not."""
    link: Link | None = getattr(inner_of(optimizer), "_hvdlite", None)
    return link


def inner_of(optimizer: Any) -> Any:
    """What a LossScaleOptimizer wraps; any other optimizer itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def exchange_of(optimizer: Any) -> Exchange:
    """The exchange of a distributed optimizer that is built."""
    inner, link = inner_of(optimizer), link_of(optimizer)
    assert link is not None
    shared = [v for v in inner._trainable_variables if id(v) not in link.local]
    if link.exchange is None or [id(v) for v in link.exchange.variables] != [id(v) for v in shared]:
        link.exchange = exchange_class()(shared, link.options)
        link.exchange.is_late, link.is_late = link.is_late, False
        if link.loaded is not None:
            link.exchange.load_state_dict(link.loaded)
            link.loaded = None
    return link.exchange


def compression_state_dict(optimizer: Any) -> dict[str, Any]:
    """What the compressor of a distributed optimizer remembers on this rank (residuals, factors), as numpy arrays; empty before the first step."""
    link = _link_for(optimizer)
    return {} if link.exchange is None else link.exchange.state_dict()


def load_compression_state_dict(optimizer: Any, state: Mapping[str, Any]) -> None:
    """Take over what :func:`compression_state_dict` gave, before the first step. Residuals of another rank are dropped with a warning."""
    link = _link_for(optimizer)
    if state and link.exchange is not None:
        link.exchange.load_state_dict(state)
    elif state:
        link.loaded = state


def _link_for(optimizer: Any) -> Link:
    link = link_of(optimizer)
    if link is None:
        raise SettingError(
            f"{optimizer!r} exchanges nothing; an optimizer from hvd.DistributedOptimizer() or hvd.DataParallel() is expected; distribute it first"
        )
    return link


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Load a saved model and distribute its optimizer again, with its state.

    Args:
        filepath: what ``model.save()`` wrote.
        custom_optimizers: optimizer classes of the user's.
        custom_objects: as in ``keras.saving.load_model``.
        compression: as for :func:`DistributedOptimizer`.
        legacy_opts: ignored; Keras 3 has no legacy optimizers.
    Raises:
        SettingError: the model was saved without an optimizer.
    """
    objects = {kind.__name__: kind for kind in custom_optimizers or ()} | dict(custom_objects or {})
    model = keras.saving.load_model(filepath, custom_objects=objects)
    if getattr(model, "optimizer", None) is None:
        raise SettingError(f"{str(filepath)!r} holds a model that was not compiled; one with an optimizer is expected; load it with keras, and compile it")
    DistributedOptimizer(model.optimizer, compression=compression)
    return model
