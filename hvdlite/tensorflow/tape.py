"""``DistributedGradientTape``: a tape whose gradients are those of all ranks."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

import hvdlite
from hvdlite import Adasum, Average, ProcessSet, ReduceOp, Sum, global_process_set
from hvdlite.agreement import override
from hvdlite.operations import check_compressible

from .collectives import grouped_allreduce
from .collectives.allreduce import reduced_slices
from .compression import Compression
from .gradients import GradientExchange
from .tensors import is_for_session, plain_python
from .variables import is_variable, number_groups, parameters_of


@dataclass(frozen=True)
class Options:
    """How gradients are exchanged; the words are those of ``DistributedGradientTape``."""

    compression: Any
    op: ReduceOp
    predivide: float
    groups: Any
    sparse_as_dense: bool
    process_set: ProcessSet

    def exchange_for(self, variables: Sequence[Any]) -> GradientExchange:
        """The one exchange of these variables under these options. Scripts make a tape a step; what a compressor remembers must outlive it."""
        world = hvdlite.world()
        channel = world.channel(self.process_set)
        groups = tuple(sorted(number_groups(self.groups, variables).items()))
        how = world.settings.compression or _identity(self.compression)
        key: Hashable = ("tape", tuple(map(id, variables)), how, self.op, self.predivide, groups, self.sparse_as_dense, channel)
        if key not in world.kept:
            world.kept[key] = _new_exchange(channel.auto_name("tape"), variables, self), self.compression  # an object's id is its own as long as it lives
            for variable in variables:
                weakref.finalize(variable, world.kept.pop, key, None).atexit = False
        found: GradientExchange = world.kept[key][0]
        return found


def options_from(compression: Any, op: ReduceOp, predivide: float, num_groups: int, groups: Any, sparse_as_dense: bool, process_set: ProcessSet) -> Options:
    """Horovod's arguments, checked.

    Raises:
        ValueError: an option that cannot be used.
    """
    op = ReduceOp(op)
    if op not in (Average, Sum, Adasum):
        raise ValueError(f"op={op.name} given; Average, Sum or Adasum is expected, since gradients are added up")
    if predivide != 1.0 and op is not Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if num_groups:
        warnings.warn("Parameter `num_groups` has been replaced by `groups` and will be removed", DeprecationWarning, stacklevel=3)
        groups = groups or num_groups
    return Options(compression, op, predivide, groups, sparse_as_dense, process_set)


def _identity(compression: Any) -> Hashable:
    """What tells one compression from another. Scripts may make the same compressor anew in every step."""
    spec = "none" if compression is None else getattr(compression, "spec", compression)
    return spec if isinstance(spec, str) else id(compression)


def _new_exchange(name: str, variables: Sequence[Any], options: Options) -> GradientExchange:
    compression = override(options.compression, Compression.resolve(options.compression))
    parameters = parameters_of(variables, options.groups)
    weak = [weakref.ref(v) for v in variables]
    weights = None if is_for_session() else lambda: [v() for v in weak]  # only a session itself can read its variables
    exchange = GradientExchange(
        name,
        parameters,
        compression,
        op=options.op,
        predivide=options.predivide,
        sparse_as_dense=options.sparse_as_dense,
        weights=weights,
        process_set=options.process_set,
    )
    if exchange.compressor is not None:
        check_compressible("DistributedGradientTape()", exchange.compressor, options.op)
        exchange.compressor.check({p.name: p.shape for p in parameters})
        hvdlite.world().remark_on(exchange.compressor.spec)
    return exchange


class _DistributedTape(tf.GradientTape):  # type: ignore[misc]
    """Takes over a tape with all it has recorded."""

    def __init__(self, tape: tf.GradientTape, options: Options, local: Iterable[Any], scale_local: bool):
        self.__dict__.update(tape.__dict__)
        self._options, self._scale_local = options, scale_local
        self._local = {id(v): v for v in local}

    def register_local_source(self, source: Any) -> None:
        """Keep the gradient of this variable to this rank."""
        self._local[id(source)] = source

    @plain_python
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
        use_generic_names: bool = False,
    ) -> Any:
        """The gradients of all ranks combined, in the structure of ``sources``. Every rank calls it equally often, with the same sources.

        Args:
            target: what is differentiated.
            sources: variables or tensors.
            output_gradients: as in ``tf.GradientTape.gradient``.
            unconnected_gradients: what stands where no rank's target depends on the source.
            use_generic_names: ignored: names need not be the same on all ranks.
        """
        channel = hvdlite.world().partners(self._options.process_set)
        if channel is None:
            return super().gradient(target, sources, output_gradients, unconnected_gradients)
        gradients = super().gradient(target, sources, output_gradients)
        found = dict(enumerate(tf.nest.flatten(gradients)))
        flat = tf.nest.flatten(sources)
        self._combine([i for i, s in enumerate(flat) if id(s) not in self._local], flat, found)
        if self._scale_local:
            for i, source in enumerate(flat):
                if id(source) in self._local and found[i] is not None:
                    found[i] = scaled(found[i], 1.0 / channel.topology.size)
        if tf.UnconnectedGradients(unconnected_gradients) is tf.UnconnectedGradients.ZERO:
            found = {i: tf.zeros_like(flat[i]) if g is None else g for i, g in found.items()}
        return tf.nest.pack_sequence_as(sources, [found[i] for i in range(len(flat))])

    def get_local_and_global_gradients(
        self, target: Any, sources: Sequence[Any], output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """What :meth:`gradient` gives, as pairs of source and gradient: those of local sources, and the others."""
        pairs = list(zip(sources, self.gradient(target, sources, output_gradients), strict=True))
        return [p for p in pairs if id(p[0]) in self._local], [p for p in pairs if id(p[0]) not in self._local]

    def _combine(self, shared: Sequence[int], sources: Sequence[Any], found: dict[int, Any]) -> None:
        """Variables through the exchange that is kept for them; tensors, which live for one step, by themselves."""
        options = self._options
        variables = [i for i in shared if is_variable(sources[i])]
        if variables:
            exchange = options.exchange_for([sources[i] for i in variables])
            found.update(zip(variables, exchange.exchange([found[i] for i in variables]), strict=True))
        tensors = [i for i in shared if i not in variables and found[i] is not None]
        slices = [] if options.sparse_as_dense else [i for i in tensors if isinstance(found[i], tf.IndexedSlices)]
        found.update((i, reduced_slices(found[i], options.op, None, options.process_set)) for i in slices)
        dense = [i for i in tensors if i not in slices]
        if dense:
            given = [tf.convert_to_tensor(found[i]) for i in dense]
            pre = 1.0 / options.predivide
            reduced = grouped_allreduce(given, None, "", "", options.compression, options.op, pre, options.predivide, options.process_set)
            found.update(zip(dense, reduced, strict=True))


def scaled(gradient: Any, factor: float) -> Any:
    """A gradient times a number."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * tf.cast(factor, gradient.values.dtype), gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)


@plain_python
def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> tf.GradientTape:
    """A tape whose ``gradient`` is that of all ranks. ``HVDLITE_COMPRESSION`` replaces ``compression``.

    Args:
        gradtape: the tape that has recorded, or will.
        device_dense: ignored.
        device_sparse: ignored.
        compression: a spec such as ``"powersgd:rank=4"``, or ``Compression.x``.
        sparse_as_dense: exchange ``IndexedSlices`` as dense tensors; else their slices are gathered, and no compressor sees them.
        op: Average, Sum, or Adasum: of the gradients, each by itself, all dense, compressed by fp16 or bf16 if at all.
        gradient_predivide_factor: divide by this before the sum, and by the rest of the number of ranks after it.
        num_groups: deprecated form of ``groups``.
        groups: a number of groups, or lists of variables that must travel together.
        process_set: the ranks that exchange; on the others the gradients are their own.
        scale_local_gradients: divide gradients of local sources by the number of ranks.
    Raises:
        ValueError: an option that cannot be used.
        CompressionError: the compressor makes no sense for these variables; raised by ``gradient``.
    """
    return PartialDistributedGradientTape(
        gradtape, device_dense, device_sparse, compression, sparse_as_dense, op, gradient_predivide_factor, num_groups, groups, process_set, None,
        scale_local_gradients,
    )  # fmt: skip


@plain_python
def PartialDistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> tf.GradientTape:
    """:func:`DistributedGradientTape` for a model with layers that each rank keeps to itself.

    Args:
        gradtape: the tape.
        device_dense: ignored.
        device_sparse: ignored.
        compression: as there.
        sparse_as_dense: as there.
        op: as there.
        gradient_predivide_factor: as there.
        num_groups: as there.
        groups: as there.
        process_set: as there.
        local_layers: a layer or several, whose variables are not exchanged.
        scale_local_gradients: divide their gradients by the number of ranks, so that both kinds move alike.
    """
    if hvdlite.is_initialized():
        hvdlite.world().partners(process_set)  # raises for a set that is not registered
    options = options_from(compression, op, gradient_predivide_factor, num_groups, groups, sparse_as_dense, process_set)
    layers = [] if local_layers is None else list(local_layers) if isinstance(local_layers, (list, tuple, set)) else [local_layers]
    return _DistributedTape(gradtape, options, [v for layer in layers for v in layer.trainable_variables], scale_local_gradients)
