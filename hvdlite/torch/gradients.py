"""The gradients of one optimizer: hooks that hand them over during the backward pass, and the wait for their mean."""

from __future__ import annotations

import copy
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

import hvdlite
from hvdlite import GradientBuckets, MismatchError, Parameter, ProcessSet, ReduceOp, SettingError
from hvdlite.agreement import WeightsWatch, check_start, first_difference, objects_by_rank

from .compression import Compression
from .sparse_gradients import agree_on_sparse, exchange_sparse
from .tensors import as_array, as_tensor, check

BROADCAST = "hvd.broadcast_parameters(model.state_dict(), root_rank=0)"
"""What makes the ranks' weights equal."""


@dataclass(frozen=True)
class Options:
    """How an optimizer's gradients are exchanged; the words are those of ``DistributedOptimizer``."""

    given: list[tuple[str, torch.nn.Parameter]] | None
    compression: Any
    passes: int
    op: ReduceOp
    predivide: float
    groups: dict[torch.Tensor, int]
    sparse_as_dense: bool
    process_set: ProcessSet
    wants_sparse: bool  # the optimizer takes no dense gradient where one was sparse
    grad_scaler: torch.amp.GradScaler | None


class Gradients:
    """Watches parameters and exchanges their gradients: dense ones in buckets, during the backward pass, and those that are known to be ``sparse`` after it.

    Which are sparse is known after the first exchange, and then in :attr:`sparse`; until then the buckets have room for all.
    """

    def __init__(self, trained: Sequence[tuple[str, torch.nn.Parameter]], options: Options, sparse: Mapping[torch.Tensor, int] | None = None):
        world = hvdlite.world()
        self._options = options
        self.passes = options.passes
        self._sparse_as_dense, self._scaler = options.sparse_as_dense, options.grad_scaler
        self._scale: float | None = None
        self._made_dense: dict[torch.Tensor, int] = {}  # what was sparse when it came, and its number of sparse dimensions
        self._names: dict[torch.Tensor, str] = {p: name for name, p in trained}
        self._seen = dict.fromkeys(self._names, 0)
        self.sparse: dict[torch.Tensor, int] = {p: dimensions for p, dimensions in (sparse or {}).items() if p in self._names}
        """Parameters whose gradients are sparse, and the number of sparse dimensions."""
        self._bucketed = [p for p in self._names if p not in self.sparse]
        self._newly_sparse: dict[torch.Tensor, int] = {}  # on this rank, before the ranks have agreed
        self._is_settled = False
        self._handed: dict[torch.Tensor, int] = {}  # parameter -> version of its gradient when it was handed over
        self._checked = False
        self._watch = WeightsWatch()
        self._parameters = [Parameter(name, tuple(p.shape), dtype_of(p, name), options.groups.get(p)) for p, name in self._names.items()]
        compressor = Compression.resolve(options.compression)
        self.compressor = copy.deepcopy(compressor) if compressor is options.compression else compressor  # what it remembers is this optimizer's
        self._name = world.channel(options.process_set).auto_name("optimizer")
        self._is_agreed = False
        self._order: list[str] = []
        self._buckets = GradientBuckets(
            world,
            self._name,
            [p for p, tensor in zip(self._parameters, self._names, strict=True) if tensor not in self.sparse],
            self.compressor,
            op=options.op,
            prescale=1.0 / options.predivide,
            postscale=options.predivide,
            process_set=options.process_set,
        )
        self._views: dict[torch.Tensor, torch.Tensor] = {}
        self._refresh_views()
        # The parameters outlive this object, and another optimizer may take them over: their hooks must not keep it alive.
        this = weakref.ref(self)
        hooks = [p.register_post_accumulate_grad_hook(lambda parameter: _hand_to(this, parameter)) for p in self._names]  # type: ignore[no-untyped-call]
        self.detach = weakref.finalize(self, _remove, hooks)
        """Stop watching."""

    @property
    def order(self) -> list[str]:
        """The order of the parameters in the buckets, once it is final."""
        return self._buckets.order

    def restore_order(self, order: Sequence[str]) -> None:
        """Lay the buckets out as in an earlier run, if the parameters are the same; rank 0 decides for all, before the first exchange."""
        if sorted(order) == sorted(self._names[p] for p in self._bucketed):
            self._order = list(order)

    def forget_passes(self) -> None:
        """Begin the step anew: the gradients were cleared."""
        self._seen = dict.fromkeys(self._seen, 0)
        self._newly_sparse.clear()

    @property
    def has_work(self) -> bool:
        """Whether a backward pass has run since the last exchange."""
        return bool(self._handed) or any(self._seen.values())

    @property
    def in_flight(self) -> bool:
        """Whether gradients were handed over and not waited for."""
        return bool(self._handed)

    @property
    def is_whole(self) -> bool:
        """Whether every gradient of this step that goes into a bucket was handed over."""
        return len(self._handed) + len(self._newly_sparse) == len(self._bucketed)

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        if self._seen[parameter] >= self.passes:
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step times before call to step(). "
                "Increase backward_passes_per_step to accumulate gradients locally."
            )
        if not self._handed:
            self._agree()
            self._follow_loss_scale()
        self._seen[parameter] += 1
        if self._seen[parameter] == self.passes:
            self._hand_over(parameter)

    def _hand_over(self, parameter: torch.Tensor) -> None:
        """Copy the gradient into its bucket, of which it is a view from now on. Sparse ones wait for :meth:`synchronize`."""
        if parameter in self.sparse:
            return
        name, view, gradient = self._names[parameter], self._views[parameter], parameter.grad
        assert gradient is not None
        if gradient.layout is torch.sparse_coo:
            if not self._sparse_as_dense and not self._is_settled:
                self._newly_sparse[parameter] = gradient.sparse_dim()
                return
            if self._sparse_as_dense:
                self._made_dense[parameter] = gradient.sparse_dim()
                gradient = gradient.to_dense()
        check(gradient, f"the gradient of {name!r}")
        parameter.grad = view
        self._handed[parameter] = view._version
        if gradient is view:
            self._buckets.mark_ready(name)
        else:
            self._buckets.hand_over(name, as_array(gradient))

    def _follow_loss_scale(self) -> None:
        """Residuals are in units of the scaled loss: when the scale changes, they follow."""
        if self._scaler is None or self.compressor is None:
            return
        scale = self._scaler.get_scale()
        if self._scale not in (None, scale):
            self.compressor.rescale(scale / self._scale)
        self._scale = scale

    def synchronize(self) -> None:
        """Exchange what is left and wait; afterwards every gradient is the mean over the ranks.

        A parameter without a gradient here counts as zero; without one on every rank, it keeps none, unless a compressor delivers what
        it owed.
        """
        self._agree()
        for parameter in self._names:
            if parameter not in self._handed and parameter.grad is not None:
                self._hand_over(parameter)
        self._check_untouched()
        self._check_start()
        self._settle_sparse()
        absent = self._buckets.finish()
        self._refresh_views()
        for parameter in self._bucketed:
            if parameter not in self.sparse:
                view = self._views[parameter]
                parameter.grad = None if self._names[parameter] in absent and not view.any() else view
                if parameter in self._made_dense and self._options.wants_sparse and parameter.grad is not None:
                    parameter.grad = view.to_sparse(self._made_dense[parameter])
        sparse = {p: (f"{self._name}.{self._names[p]}", dimensions) for p, dimensions in self.sparse.items()}
        exchange_sparse(sparse, self._options.op, self._options.process_set)
        self.forget_passes()
        self._handed.clear()

    def _agree(self) -> None:
        """Before the first exchange: that the ranks train the same parameters, and in which order these lie in the buckets."""
        if self._buckets.rejoin():
            self._refresh_views()
            self._is_agreed = self._checked = False  # some have not stepped since: ranks compare anew
        if self._is_agreed:
            return
        self._is_agreed = True
        mine, process_set = [(p.name, p.shape, p.dtype) for p in self._parameters], self._options.process_set
        gathered = objects_by_rank((mine, self._order), f"{self._name}.parameters", process_set)
        everyone = list(gathered.values())
        problem = first_difference([theirs for theirs, _ in everyone], process_set, list(gathered))
        if problem:
            raise MismatchError(problem)
        if everyone[0][1]:
            self._buckets.lay_out_as(everyone[0][1])
            self._refresh_views()

    def _settle_sparse(self) -> None:
        """Once, in the first exchange: which gradients are sparse on some rank and dense on none. What is dense on another rank is made dense."""
        if self._is_settled:
            return
        self._is_settled = True
        mine = {self._names[p]: dimensions for p, dimensions in self._newly_sparse.items()}
        agreed = agree_on_sparse(mine, [self._names[p] for p in self._handed], f"{self._name}.sparse", self._options.process_set)
        self.sparse |= {p: agreed[name] for p, name in self._names.items() if name in agreed}
        for parameter in [p for p in self._newly_sparse if p not in self.sparse]:
            assert parameter.grad is not None
            parameter.grad = parameter.grad.to_dense()
            self._hand_over(parameter)

    def _check_untouched(self) -> None:
        for parameter, version in self._handed.items():
            if parameter.grad is not self._views[parameter] or parameter.grad._version != version:
                raise SettingError(
                    f"the gradient of {self._names[parameter]!r} was changed after backward() while it was being exchanged; "
                    "it must stay untouched until it is the mean over the ranks; "
                    "call optimizer.synchronize() first, then clip or unscale, then step inside 'with optimizer.skip_synchronize()'"
                )

    def _check_start(self) -> None:
        """Once, before the first step: ranks that start from different weights never come together."""
        if not self._checked:
            self._checked = True
            check_start(self._weights(), BROADCAST, process_set=self._options.process_set)
        self._watch.look(self._weights, process_set=self._options.process_set)

    def _weights(self) -> Iterable[tuple[str, Any]]:
        return ((name, as_array(p.detach().contiguous())) for p, name in self._names.items())

    def _refresh_views(self) -> None:
        """The tensors over the buckets' memory; new ones after the buckets were laid out anew."""
        for parameter in self._bucketed:
            array = self._buckets.view(self._names[parameter])
            old = self._views.get(parameter)
            if old is None or old.data_ptr() != array.ctypes.data:
                self._views[parameter] = as_tensor(array)
                if old is not None and parameter.grad is old:  # its values have moved
                    parameter.grad = self._views[parameter]


def _hand_to(gradients: weakref.ref[Gradients], parameter: torch.Tensor) -> None:
    watcher = gradients()
    if watcher is not None:
        watcher._on_gradient(parameter)


def _remove(hooks: list[RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()


def dtype_of(parameter: torch.Tensor, name: str) -> str:
    """What the core calls the parameter's dtype."""
    check(parameter, repr(name))
    return str(as_array(torch.empty((), dtype=parameter.dtype)).dtype)


def name_parameters(
    param_groups: Sequence[dict[str, Any]], named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None, *, complete: bool = True
) -> list[tuple[str, torch.nn.Parameter]]:
    """A name for every parameter of the optimizer, by Horovod's rules and with its messages.

    Raises:
        ValueError: the names are no pairs, not unique, or (if they must be ``complete``) do not cover every parameter.
    """
    named = list(named_parameters) if named_parameters is not None else []
    if any(not isinstance(item, tuple) for item in named):
        raise ValueError("named_parameters should be a sequence of tuples (name, parameter), usually produced by model.named_parameters().")
    duplicates = sorted(name for name, count in Counter(name for name, _ in named).items() if count > 1)
    if duplicates:
        raise ValueError(f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(duplicates)}")
    known = {id(p): name for name, p in reversed(named)}  # a shared parameter goes by its first name
    own = [
        (name, p)
        for g, group in enumerate(param_groups)
        for p, name in zip(group["params"], group.get("param_names") or [f"group.{g}.{i}" for i in range(len(group["params"]))], strict=True)
    ]
    unnamed = [str(id(p)) for _, p in own if id(p) not in known]
    if named and unnamed and complete:
        raise ValueError(f"named_parameters was specified, but one or more model parameters were not named. Python object ids: {', '.join(unnamed)}")
    return [(known.get(id(p), fallback), p) for fallback, p in own]


def number_groups(groups: Any, parameters: Sequence[torch.Tensor]) -> dict[torch.Tensor, int]:
    """Horovod's ``groups``: an int splits the parameters evenly, lists name them; parameters in no list travel in the usual buckets."""
    if groups is None or groups == 0:
        return {}
    if isinstance(groups, int) and not isinstance(groups, bool) and groups > 0:
        size, extra = divmod(len(parameters), groups)
        bounds = [i * size + min(i, extra) for i in range(groups + 1)]
        return {p: number for number in range(groups) for p in parameters[bounds[number] : bounds[number + 1]]}
    if not isinstance(groups, (list, tuple)) or not all(isinstance(g, (list, tuple)) for g in groups):
        raise ValueError("groups should be a non-negative integer or a list of list of torch.Tensor.")
    numbered: dict[torch.Tensor, int] = {}
    for number, members in enumerate(groups):
        for p in members:
            if not isinstance(p, torch.Tensor):
                raise ValueError("groups must consist of torch.Tensor.")
            if p in numbered:
                raise ValueError("A parameter can only appear once in groups.")
            numbered[p] = number
    return numbered
