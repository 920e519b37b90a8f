"""Names of Keras 2 that Horovod's scripts use and Keras 3 has no more, given to Keras 3 where the alias stands in for Horovod.

Nothing that Keras 3 has is changed: names that are missing are added, and arguments that it would refuse are taken. What has no counterpart
(``update_step`` without a learning rate, ``get_updates``, sessions) stays missing.
"""

from __future__ import annotations

import functools
import sys
from importlib import import_module
from typing import Any

__all__ = ["install"]

_GONE_ARGUMENTS = ("experimental_run_tf_function",)
"""What ``Model.compile`` took, and what means nothing any more: Horovod's scripts pass it so that the optimizer's own methods are called. They are."""


class _CallableList(list[Any]):
    """``optimizer.variables``, which was a method."""

    def __call__(self) -> _CallableList:
        return self


class _Reference:
    """What ``variable.ref()`` gave: it can be a key of a dict."""

    def __init__(self, variable: Any):
        self._variable = variable

    def deref(self) -> Any:
        """The variable."""
        return self._variable

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reference) and self._variable is other._variable

    def __hash__(self) -> int:
        return id(self._variable)


@functools.cache
def install() -> None:
    """Add the names, once in a process."""
    keras = import_module("keras")
    _optimizers(keras.optimizers)
    _compile(_definer(keras.Model, "compile"))
    if keras.backend.backend() == "tensorflow":
        _Passes.add_to(_definer(keras.optimizers.Optimizer, "variables"))
    if not hasattr(keras.Variable, "ref"):
        keras.Variable.ref = lambda self: _Reference(self)
    if "tensorflow" in sys.modules:
        older = import_module("tensorflow").keras
        for folder in ("layers", "losses", "metrics"):
            _exchange_names(getattr(keras, folder), getattr(older, folder))


def _optimizers(optimizers: Any) -> None:
    base = _definer(optimizers.Optimizer, "variables")
    variables = vars(base)["variables"]
    base.variables = property(lambda self: _CallableList(variables.fget(self)), doc=variables.__doc__)
    if not hasattr(base, "lr"):
        base.lr = property(lambda self: self.learning_rate, lambda self, rate: setattr(self, "learning_rate", rate), doc="The learning rate.")
    make = base.__init__

    @functools.wraps(make)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if "lr" in kwargs:
            rate = kwargs.pop("lr")
            args = (rate, *args[1:])
            kwargs.pop("learning_rate", None)
        make(self, *args, **kwargs)

    base.__init__ = init
    legacy = getattr(optimizers, "legacy", None)
    for name in [n for n in dir(legacy) if hasattr(optimizers, n) and isinstance(getattr(optimizers, n), type)]:
        setattr(legacy, name, getattr(optimizers, name))


class _Passes:
    """``_compute_gradients`` and what Horovod's optimizers kept in ``_agg_helper``."""

    def __init__(self, optimizer: Any):
        self._optimizer = optimizer

    @property
    def counter(self) -> Any:
        """How many passes there were since the last step."""
        tensorflow, link = import_module("tensorflow"), self._optimizer._hvdlite
        return tensorflow.constant(int(self._optimizer._iterations) % link.options.passes)

    @classmethod
    def add_to(cls, base: Any) -> None:
        """``base`` is the class that every optimizer of Keras stands on."""
        base._compute_gradients = cls._compute_gradients
        base._agg_helper = property(cls)
        apply_gradients = base.apply_gradients

        @functools.wraps(apply_gradients)
        def apply(self: Any, grads_and_vars: Any, *args: Any, experimental_aggregate_gradients: bool = True, **kwargs: Any) -> Any:
            pairs = list(grads_and_vars)
            exchanged = self.__dict__.get("_exchanged_gradients", ())
            if not pairs or [id(g) for g, _ in pairs] != [id(g) for g in exchanged]:
                return apply_gradients(self, pairs, *args, **kwargs)
            link, self._hvdlite = self._hvdlite, None  # once is enough
            try:
                return apply_gradients(self, pairs, *args, **kwargs)
            finally:
                self._hvdlite = link

        base.apply_gradients = apply

    @staticmethod
    def _compute_gradients(optimizer: Any, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None) -> list[tuple[Any, Any]]:
        """Pairs of gradient and variable; those of all ranks, from a distributed optimizer."""
        variables = list(var_list)
        if callable(loss):
            with import_module("tensorflow").GradientTape() as tape:
                value = loss()
        else:
            value = loss
        gradients, link = tape.gradient(value, variables, grad_loss), getattr(optimizer, "_hvdlite", None)
        if link is not None and import_module("hvdlite").world().partners(link.options.process_set) is not None:
            gradients = optimizer._exchanged(link, gradients, variables)
            object.__setattr__(optimizer, "_exchanged_gradients", gradients)
        return list(zip(gradients, variables, strict=True))


def _compile(trainer: Any) -> None:
    compile_ = trainer.compile

    @functools.wraps(compile_)
    def compile_without(self: Any, *args: Any, **kwargs: Any) -> Any:
        return compile_(self, *args, **{name: value for name, value in kwargs.items() if name not in _GONE_ARGUMENTS})

    trainer.compile = compile_without


def _definer(kind: type, name: str) -> Any:
    """The class among the bases of ``kind`` that defines ``name``."""
    return next(c for c in kind.__mro__ if name in vars(c))


def _exchange_names(one: Any, other: Any) -> None:
    """Give each of two modules the public names that only the other has."""
    for source, target in ((one, other), (other, one)):
        for name in dir(source):
            if not name.startswith("_") and not hasattr(target, name):
                setattr(target, name, getattr(source, name))
