"""``DistributedOptimizer``: the user's optimizer, stepping on the mean gradient of all ranks."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import hvdlite
from hvdlite import Adasum, Average, ProcessSet, ReduceOp, global_process_set
from hvdlite.agreement import override
from hvdlite.compression import RESIDUAL
from hvdlite.operations import check_compressible

from .adasum import AdasumSteps
from .compression import Compression
from .gradients import Gradients, Options, name_parameters, number_groups
from .tensors import as_array, as_tensor

LOG = logging.getLogger("hvdlite")

STATE_KEY = "hvdlite"
"""Where :meth:`_Distributed.state_dict` keeps what the compressor remembers."""


class _Distributed(torch.optim.Optimizer):
    """What an optimizer's class gains in front of its own methods."""

    _gradients: Gradients | None
    _options: Options
    _frozen: list[tuple[str, torch.nn.Parameter]]
    _sparse: dict[torch.Tensor, int]  # parameters whose gradients are sparse, and the number of sparse dimensions
    _synchronized: bool  # the gradients are the mean already, and step() has not been called since
    _by_hand: bool  # ... because the user called synchronize()
    _should_synchronize: bool

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The optimizer's groups. Reading them when the whole gradient is under way waits for it, so GradScaler sees the mean."""
        gradients = self.__dict__.get("_gradients")
        if gradients is not None and gradients.in_flight and gradients.is_whole:
            self._complete()
        groups: list[dict[str, Any]] = self.__dict__["param_groups"]
        return groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.__dict__["param_groups"] = groups

    @property
    def backward_passes_per_step(self) -> int:
        """Backward passes whose gradients are summed before an exchange."""
        return self._options.passes

    @property
    def process_set(self) -> ProcessSet:
        """The ranks that exchange."""
        return self._options.process_set

    @property
    def _parameter_names(self) -> dict[torch.nn.Parameter, str]:
        """Every parameter's name, under the attribute where scripts for Horovod look for it."""
        return {p: name for name, p in name_parameters(self.param_groups, self._options.given, complete=False)}

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change the number of backward passes per step, between steps."""
        self._options = replace(self._options, passes=passes)
        if self._gradients is not None:
            self._gradients.passes = passes

    def synchronize(self) -> None:
        """Wait until every gradient is the mean over the ranks. Call it before clipping, then step in :meth:`skip_synchronize`."""
        self._complete()
        self._by_hand = True

    def _complete(self) -> None:
        if self._gradients is not None and (self._gradients.has_work or not self._synchronized):
            self._gradients.synchronize()
            if self._gradients.sparse.keys() - self._sparse.keys():  # their room in the buckets is not needed again
                self._sparse |= self._gradients.sparse
                self._watch()
            thawed = self._thawed()
            if thawed:  # in the middle of a step: they have gradients, and no bucket yet
                late = Gradients(thawed, replace(self._options, compression=None))
                late.synchronize()
                late.detach()
                self._watch()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Inside, :meth:`step` does not synchronize: it was done by hand."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Synchronize, then step. A closure is run first, with gradients enabled; its value is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._should_synchronize and self._synchronized and self._by_hand and not (self._gradients and self._gradients.has_work):
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(). "
                "This can cause training slowdown. You may want to consider using optimizer.skip_synchronize() context.",
                stacklevel=2,
            )
        if self._should_synchronize:
            self._complete()
        self._synchronized = self._by_hand = False
        self._opt_called = True
        result = super().step()
        return loss if closure is not None else result

    # torch wraps step() of a class for its own hooks, and of an instance to see that a scheduler steps after it. Ours calls the wrapped
    # one, and notes its call itself, so neither must wrap it again.
    step.hooked = True  # type: ignore[attr-defined]
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients.

        Raises:
            AssertionError: they are being exchanged.
        """
        if self._gradients is not None and self._gradients.in_flight:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or optimizer.synchronize(). "
                "This is prohibited as it can cause a race condition."
            )
        self._synchronized = self._by_hand = False
        if self._gradients is not None:
            self._gradients.forget_passes()
        super().zero_grad(set_to_none)
        if self._thawed():
            self._watch()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters; their gradients are exchanged from the next step on."""
        super().add_param_group(param_group)
        self._watch()

    def flush(self) -> None:
        """Let the next exchange carry every residual, uncompressed, so that a checkpoint after it suits any number of ranks."""
        if self._gradients is not None and self._gradients.compressor is not None:
            self._gradients.compressor.flush()

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, and under ``"hvdlite"`` what the compressor remembers on this rank."""
        state = super().state_dict()
        if self._gradients is not None and self._gradients.compressor is not None:
            compressor = self._gradients.compressor
            remembered = {name: {q: as_tensor(np.array(a)) for q, a in quantities.items()} for name, quantities in compressor.state_dict().items()}
            place = hvdlite.world().channel(self._options.process_set).topology
            own = {"compression": compressor.spec, "rank": place.rank, "size": place.size}
            state[STATE_KEY] = own | {"order": self._gradients.order, "state": remembered}
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state, the compressor's included when it is this rank's own.

        Residuals belong to one rank: those of another rank, or of another number of ranks, are dropped with a warning.
        """
        remembered = state_dict.get(STATE_KEY)
        super().load_state_dict({k: v for k, v in state_dict.items() if k != STATE_KEY})
        if remembered is None or self._gradients is None or self._gradients.compressor is None:
            return
        compressor = self._gradients.compressor
        self._gradients.restore_order(remembered["order"])
        if remembered["compression"] != compressor.spec:
            LOG.warning("the checkpoint was compressed with %s, this run with %s; the compressor starts afresh", remembered["compression"], compressor.spec)
            return
        state = {name: {q: as_array(t) for q, t in quantities.items()} for name, quantities in remembered["state"].items()}
        place = hvdlite.world().channel(self._options.process_set).topology
        own = (remembered["rank"], remembered["size"]) == (place.rank, place.size)
        if not own:
            LOG.warning(
                "rank %d of %d loads the state of rank %d of %d: residuals belong to one rank and are dropped; save one checkpoint a rank, "
                "or call optimizer.flush() before the step after which you save",
                place.rank, place.size, remembered["rank"], remembered["size"],
            )  # fmt: skip
            state = {name: {q: a for q, a in quantities.items() if q != RESIDUAL} for name, quantities in state.items()}
        compressor.load_state_dict(state)

    def _watch(self) -> None:
        """Exchange the gradients of everything that is trained now; what the compressor remembers stays."""
        if "_options" not in self.__dict__ or hvdlite.world().partners(self._options.process_set) is None:
            return
        old, options = self._gradients, self._options
        if old is not None:
            if old.in_flight:
                raise AssertionError("parameters were added after loss.backward() but before optimizer.step(); add them between steps")
            old.detach()
        named = name_parameters(self.param_groups, options.given, complete=False)
        self._frozen = [(name, p) for name, p in named if not p.requires_grad]
        trained = [(name, p) for name, p in named if p.requires_grad]
        self._gradients = Gradients(trained, options, self._sparse)
        if old is not None and old.compressor is not None and self._gradients.compressor is not None:
            self._gradients.compressor.load_state_dict(old.compressor.state_dict())

    def _rejoin(self) -> None:
        """Exchange with the ranks there are now; what the compressor remembers stays."""
        old, self._gradients = self._gradients, None
        self._synchronized = self._by_hand = False
        if old is not None:
            old.detach()
        self._watch()
        new = self._gradients_now()
        if old is not None and old.compressor is not None and new is not None and new.compressor is not None:
            new.compressor.load_state_dict(old.compressor.state_dict())

    def _gradients_now(self) -> Gradients | None:
        return self._gradients

    def _detach(self) -> None:
        """Stop watching."""
        gradients = self.__dict__.get("_gradients")
        if gradients is not None:
            gradients.detach()
        self._gradients = None

    def _thawed(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [(name, p) for name, p in self._frozen if p.requires_grad]


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    grad_scaler: torch.amp.GradScaler | None = None,
) -> torch.optim.Optimizer:
    """Make an optimizer step on the mean gradient of all ranks. It stays the same object, with its state and its class.

    Gradients are exchanged during the backward pass, in buckets. ``HVDLITE_COMPRESSION`` replaces ``compression``.

    Args:
        optimizer: any optimizer but LBFGS.
        named_parameters: ``model.named_parameters()``; names appear in errors and key the compressor's state.
        compression: a spec such as ``"powersgd:rank=4"``, or ``Compression.x``.
        backward_passes_per_step: gradients of so many backward passes are summed before they are exchanged.
        op: Average, Sum, or Adasum: then every rank steps on its own gradients, and the changes of the weights are combined
            (:class:`hvdlite.torch.adasum.AdasumSteps`), compressed by fp16 or bf16 if at all. It needs no learning rate scaled by ``size()``.
        gradient_predivide_factor: divide by this before the sum, and by the rest of the number of ranks after it.
        num_groups: deprecated form of ``groups``.
        groups: a number of groups, or lists of parameters that must travel together.
        sparse_as_dense: exchange sparse gradients as dense ones; the optimizer then gets dense ones, SparseAdam excepted. Otherwise they travel as
            positions and values, uncompressed, and stay sparse; which parameters have them must be clear after the first step.
        process_set: the ranks that exchange; on the others the optimizer steps on its own gradients.
        grad_scaler: the scaler of the loss; residuals of error feedback then follow its scale.
    Raises:
        ValueError: LBFGS; names, groups or numbers that cannot be used.
        CompressionError: the compressor makes no sense for these parameters.
        ProcessSetError: the set is not registered.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "LBFGS evaluates its closure many times a step, which no gradient hook can follow; hvdlite supports every other optimizer; use one of them"
        )
    op = ReduceOp(op)
    if gradient_predivide_factor != 1.0 and op is not Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if num_groups:
        warnings.warn("Parameter `num_groups` has been replaced by `groups` and will be removed", DeprecationWarning, stacklevel=2)
        groups = groups or num_groups
    _check_passes(backward_passes_per_step)
    given = None if named_parameters is None else list(named_parameters)
    named = name_parameters(optimizer.param_groups, given)
    compression = override(compression, Compression.resolve(compression))
    compressor = Compression.resolve(compression)
    if compressor is not None:
        check_compressible("DistributedOptimizer()", compressor, op)
        compressor.check({name: tuple(p.shape) for name, p in named if p.requires_grad})
        hvdlite.world().remark_on(compressor.spec)
    options = Options(
        given=given,
        compression=compression,
        passes=backward_passes_per_step,
        op=op,
        predivide=gradient_predivide_factor,
        groups=number_groups(groups, [p for _, p in named]),
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
        wants_sparse=isinstance(optimizer, torch.optim.SparseAdam),
        grad_scaler=grad_scaler,
    )
    _adopt(optimizer, options)
    return optimizer


def rejoin(optimizer: torch.optim.Optimizer) -> None:
    """After :func:`hvdlite.world.reset`: let a distributed optimizer exchange with the ranks there are now, whatever was under way; others stay as they are."""
    if isinstance(optimizer, _Distributed):
        optimizer._rejoin()
    elif isinstance(optimizer, AdasumSteps):
        optimizer._watch()


def _adopt(optimizer: torch.optim.Optimizer, options: Options) -> None:
    """Turn the optimizer into one that exchanges. Its class changes, so that isinstance and its own step() keep working."""
    abilities = AdasumSteps if options.op is Adasum and hvdlite.world().partners(options.process_set) is not None else _Distributed
    if isinstance(optimizer, (_Distributed, AdasumSteps)):
        optimizer._detach()
    if not isinstance(optimizer, abilities):
        kind = type(optimizer).__bases__[1] if isinstance(optimizer, (_Distributed, AdasumSteps)) else type(optimizer)
        optimizer.__dict__.pop("step", None)  # a scheduler's wrapper around the step() of before
        optimizer.__class__ = type(kind.__name__, (abilities, kind), {"__module__": kind.__module__})
    if isinstance(optimizer, AdasumSteps):
        optimizer._options = options
        optimizer._watch()
        return
    assert isinstance(optimizer, _Distributed)
    optimizer._gradients, optimizer._options, optimizer._frozen = None, options, []
    optimizer._sparse = {}
    optimizer._synchronized = optimizer._by_hand = False
    optimizer._should_synchronize = True
    optimizer._watch()


def _check_passes(passes: int) -> None:
    if passes < 1:
        raise ValueError("backward_passes_per_step must be > 0")
