"""``TorchState``: models, optimizers, samplers and plain objects that survive a reset."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

import hvdlite
from hvdlite.elastic import ObjectState

from ..functions import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from ..optimizer import STATE_KEY, rejoin
from .sampler import ElasticSampler


class StateHandler:
    """How one object is saved, restored and shared. What :meth:`save` remembers must be attributes of the handler: they go to the next start of the job."""

    def __init__(self, value: Any):
        self.value = value

    def save(self) -> None:
        """Remember the object's state."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to what was saved."""
        raise NotImplementedError

    def sync(self) -> None:
        """Give every rank the state of rank 0."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """Handle another object from now on."""
        self.value = value
        self.save()

    def reset(self) -> None:
        """Adapt to the new ranks; before the state is shared."""

    def snapshot(self) -> dict[str, Any]:
        """What was saved last, to be pickled."""
        return {name: saved for name, saved in vars(self).items() if name != "value"}

    def load_snapshot(self, saved: Mapping[str, Any]) -> None:
        """Take what :meth:`snapshot` gave as saved, and go back to it."""
        vars(self).update(saved)
        self.restore()


class ModelStateHandler(StateHandler):
    """A ``torch.nn.Module``."""

    def __init__(self, model: torch.nn.Module):
        super().__init__(model)
        self.save()

    def save(self) -> None:
        """Copy its state."""
        self._saved_model_state = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Load the copy."""
        self.value.load_state_dict(self._saved_model_state)

    def sync(self) -> None:
        """Give every rank the parameters and buffers of rank 0, and save them."""
        broadcast_parameters(self.value.state_dict(), root_rank=0)
        self.save()


class OptimizerStateHandler(StateHandler):
    """A ``torch.optim.Optimizer``, distributed or not."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        super().__init__(optimizer)
        self.save()

    def save(self) -> None:
        """Copy its state; of a distributed one also what the compressor remembers on this rank."""
        self._saved_optimizer_state = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Load the copy."""
        self.value.load_state_dict(copy.deepcopy(self._saved_optimizer_state))

    def sync(self) -> None:
        """Give every rank the state and options of rank 0, and save them."""
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()

    def reset(self) -> None:
        """Exchange gradients with the new ranks."""
        rejoin(self.value)

    def snapshot(self) -> dict[str, Any]:
        """Without what the compressor remembers: that belongs to one rank, and other ranks would remember something else."""
        return {"_saved_optimizer_state": {key: value for key, value in self._saved_optimizer_state.items() if key != STATE_KEY}}


class SamplerStateHandler(StateHandler):
    """An :class:`ElasticSampler`."""

    def __init__(self, sampler: ElasticSampler):
        super().__init__(sampler)
        self.save()

    def save(self) -> None:
        """Remember its place."""
        self._saved_sampler_state = dict(self.value.state_dict())

    def restore(self) -> None:
        """Go back there, and deal what is left."""
        self.value.load_state_dict(self._saved_sampler_state)

    def sync(self) -> None:
        """Go to rank 0's place, and deal what is left to the ranks there are now."""
        self.value.load_state_dict(broadcast_object(self.value.state_dict()))
        self.save()


_HANDLERS: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


class TorchState(ObjectState):
    """The state of a training: ``TorchState(model, optimizer, sampler=sampler, epoch=0)`` has them as attributes.

    Args:
        model: a module, or None.
        optimizer: an optimizer, or None.
        kwargs: more of them, samplers, and plain objects.
    """

    def __init__(self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **kwargs: Any):
        self._handlers: dict[str, StateHandler] = {}
        objects = {**kwargs, "model": model, "optimizer": optimizer}
        handlers = {name: handler for name, value in objects.items() if (handler := _handler_of(value)) is not None}
        for name, handler in handlers.items():
            setattr(self, name, handler.value)
        self._handlers = handlers
        super().__init__(broadcast_object, hvdlite.rank, **{name: value for name, value in objects.items() if name not in handlers})

    def save(self) -> None:
        """Save every object."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Restore every object."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Give every rank rank 0's objects."""
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def reset(self) -> None:
        """Adapt every object to the new ranks."""
        for handler in self._handlers.values():
            handler.reset()

    def snapshot(self) -> Any:
        """What every object has saved."""
        return {name: handler.snapshot() for name, handler in self._handlers.items()}, super().snapshot()

    def load_snapshot(self, saved: Any) -> None:
        """For every object of this state that is in it."""
        handled, plain = saved
        for name, handler in self._handlers.items():
            if name in handled:
                handler.load_snapshot(handled[name])
        super().load_snapshot(plain)

    def __setattr__(self, name: str, value: Any) -> None:
        handler = self.__dict__.get("_handlers", {}).get(name)
        if handler is not None:
            handler.set_value(value)
        super().__setattr__(name, value)


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """The types of objects that have a handler; to be extended."""
    return _HANDLERS


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    """Replace it."""
    _HANDLERS[:] = registry


def _handler_of(value: Any) -> StateHandler | None:
    return next((handler(value) for kind, handler in get_handler_registry() if isinstance(value, kind)), None)
