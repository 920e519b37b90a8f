"""``DistributedOptimizer(op=hvd.Adasum)``: every rank steps by itself, and the changes of the weights are combined by Adasum."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import hvdlite
from hvdlite import Adasum, GradientBuckets, Min, MismatchError, Parameter
from hvdlite.agreement import check_start, first_difference, objects_by_rank

from .compression import Compression
from .gradients import BROADCAST, Options, dtype_of, name_parameters
from .tensors import as_array, as_tensor


class AdasumSteps(torch.optim.Optimizer):
    """What an optimizer's class gains in front of its own methods.

    The delta optimizer of Maleki et al. 2020 (section 4.1), as Horovod has it: the optimizer's own step on the rank's own gradients, then
    ``weight = weight before + Adasum of all ranks' (weight after - weight before)``. What the optimizer keeps (moments) is each rank's own.
    Gradients stay what they are, so they may be clipped before the step; the exchange does not overlap the backward pass.
    """

    _options: Options
    _deltas: Deltas | None

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The optimizer's groups. Reading them after the backward pass makes an overflow everybody's, so every rank's GradScaler skips the step."""
        deltas = self.__dict__.get("_deltas")
        if deltas is not None and deltas.is_whole:
            deltas.share_overflow()
        groups: list[dict[str, Any]] = self.__dict__["param_groups"]
        return groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.__dict__["param_groups"] = groups

    @property
    def backward_passes_per_step(self) -> int:
        """Backward passes whose gradients are summed before a step."""
        return self._options.passes

    @property
    def _parameter_names(self) -> dict[torch.nn.Parameter, str]:
        """Every parameter's name, under the attribute where scripts for Horovod look for it."""
        return {p: name for name, p in name_parameters(self.param_groups, self._options.given, complete=False)}

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change the number of backward passes per step, between steps."""
        self._options = replace(self._options, passes=passes)
        if self._deltas is not None:
            self._deltas.passes = passes

    def synchronize(self) -> None:
        """Nothing: what is exchanged exists only in :meth:`step`."""

    def skip_synchronize(self) -> AbstractContextManager[None]:
        """Refused, as in Horovod.

        Raises:
            AssertionError: always.
        """
        raise AssertionError("Skipping synchronization is not supported when using Adasum optimizer.")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step on this rank's gradients, then take the ranks' changes combined. A closure is run first, with gradients enabled; its value is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        deltas = self._deltas
        assert deltas is not None
        deltas.check_agreement()
        deltas.share_overflow()
        deltas.begin()
        self._opt_called = True
        result = super().step()
        deltas.exchange()
        return loss if closure is not None else result

    # As for the other distributed optimizers: torch must not wrap what calls the wrapped one.
    step.hooked = True  # type: ignore[attr-defined]
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        if self._deltas is not None:
            self._deltas.forget()
        super().zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters; their changes are exchanged from the next step on."""
        super().add_param_group(param_group)
        self._watch()

    def _watch(self) -> None:
        """Exchange what the optimizer changes now."""
        if "_options" in self.__dict__:
            self._detach()
            self._deltas = Deltas(name_parameters(self.__dict__["param_groups"], self._options.given, complete=False), self._options)

    def _detach(self) -> None:
        """Stop watching."""
        deltas = self.__dict__.get("_deltas")
        if deltas is not None:
            deltas.detach()
            self._deltas = None


class Deltas:
    """How a step changes the parameters, and the exchange of that. Frozen parameters take part: their change is zero until they are trained."""

    def __init__(self, named: Sequence[tuple[str, torch.nn.Parameter]], options: Options):
        world = hvdlite.world()
        self.passes = options.passes
        self._names: dict[torch.Tensor, str] = {p: name for name, p in named}
        self._seen = dict.fromkeys(self._names, 0)
        self._has_shared = self._is_agreed = False
        self._parameters = [Parameter(name, tuple(p.shape), dtype_of(p, name), options.groups.get(p)) for p, name in self._names.items()]
        self._process_set = options.process_set
        self._name = world.channel(options.process_set).auto_name("optimizer")
        compressor = Compression.resolve(options.compression)
        self._buckets = GradientBuckets(world, self._name, self._parameters, compressor, op=Adasum, process_set=options.process_set)
        this = weakref.ref(self)
        hooks = [p.register_post_accumulate_grad_hook(lambda parameter: _count(this, parameter)) for p in self._names if p.requires_grad]  # type: ignore[no-untyped-call]
        self.detach = weakref.finalize(self, lambda: [h.remove() for h in hooks])
        """Stop watching."""

    @property
    def is_whole(self) -> bool:
        """Whether the backward passes of a step are done, as far as can be seen."""
        counts = set(self._seen.values()) - {0}
        return counts == {self.passes}

    def forget(self) -> None:
        """Begin the step anew."""
        self._seen = dict.fromkeys(self._seen, 0)
        self._has_shared = False

    def count(self, parameter: torch.Tensor) -> None:
        """A backward pass has added to the parameter's gradient."""
        if self._has_shared:  # the step before was skipped
            self.forget()
        if self._seen[parameter] >= self.passes:
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step times before call to step(). "
                "Increase backward_passes_per_step to accumulate gradients locally."
            )
        self._seen[parameter] += 1

    def share_overflow(self) -> None:
        """Once a step, on every rank: where any has NaN or infinity in a gradient, all get NaN, and all skip the step or take it as badly."""
        if self._has_shared:
            return
        self._has_shared = True
        gradients = [p.grad for p in self._names if p.grad is not None]
        finite = np.array([all(bool(torch.isfinite(g.coalesce().values() if g.is_sparse else g).all()) for g in gradients)], np.uint8)
        hvdlite.allreduce_async([finite], name=f"{self._name}.finite", op=Min, process_set=self._process_set).wait()
        if not finite[0]:
            for gradient in gradients:
                gradient.mul_(torch.nan)

    def check_agreement(self) -> None:
        """Before the first step: that the ranks train the same parameters, from the same weights."""
        if self._buckets.rejoin():
            self._is_agreed = False
        if self._is_agreed:
            return
        self._is_agreed = True
        mine = [(p.name, p.shape, p.dtype) for p in self._parameters]
        gathered = objects_by_rank(mine, f"{self._name}.parameters", self._process_set)
        problem = first_difference(list(gathered.values()), self._process_set, list(gathered))
        if problem:
            raise MismatchError(problem)
        check_start(((name, as_array(p.detach().contiguous())) for p, name in self._names.items()), BROADCAST, process_set=self._process_set)

    def begin(self) -> None:
        """The step is about to change the parameters."""
        self._before = {p: p.detach().clone() for p in self._names}

    @torch.no_grad()
    def exchange(self) -> None:
        """The step has changed them: put the combined change in the place of this rank's own."""
        before, self._before = self._before, {}
        for p in reversed(before):
            torch.sub(p.detach(), before[p], out=as_tensor(self._buckets.view(self._names[p])))
            self._buckets.mark_ready(self._names[p])
        self._buckets.finish()
        for p, start in before.items():
            torch.add(start, as_tensor(self._buckets.view(self._names[p])), out=p.detach())
        self.forget()


def _count(deltas: weakref.ref[Deltas], parameter: torch.Tensor) -> None:
    watcher = deltas()
    if watcher is not None:
        watcher.count(parameter)
