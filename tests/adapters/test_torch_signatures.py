"""The functions of hvdlite.torch take what Horovod's take: a call written for one works with the other."""

import ast
import inspect
from functools import reduce
from itertools import takewhile

import pytest
from horovod_api import FUNCTIONS, OTHER_NAMES

import hvdlite.torch as hvd

# The one list of what is not there yet. A name or argument in it must really be missing, so that the list shrinks.
MISSING: dict[str, str] = {}
MISSING_ARGUMENTS: dict[str, str] = {}


def find(path: str):
    return reduce(getattr, path.split("."), hvd)


def facts():
    """``(name, [(argument, source of its default, None if it has none)])`` of every function in the table."""
    for line in FUNCTIONS.split("\n"):
        if line:
            call = ast.parse(line, mode="eval").body
            given = [(a.id, None) for a in call.args] + [(k.arg, ast.unparse(k.value)) for k in call.keywords]
            yield ast.unparse(call.func), given


@pytest.mark.parametrize(
    ("name", "expected"), [f for f in facts() if f[0].split(".")[0] not in MISSING], ids=lambda value: value if isinstance(value, str) else ""
)
def test_arguments_their_order_and_defaults(name, expected):
    parameters = inspect.signature(find(name)).parameters
    missing = [argument for argument, _ in expected if argument in MISSING_ARGUMENTS]
    assert not set(missing) & set(parameters), f"{name} has {missing}: take it off the list"
    positional = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    before = [argument for argument, _ in takewhile(lambda fact: fact[0] not in MISSING_ARGUMENTS, expected)]
    assert positional[: len(before)] == before
    if missing:  # what comes after it there must not take its place here
        assert positional == before
    expected = [(argument, default) for argument, default in expected if argument not in MISSING_ARGUMENTS]
    assert [p for p in parameters if p in dict(expected)] == [argument for argument, _ in expected]
    for argument, default in expected:
        if default is not None:  # what must be given there may be left out here
            assert parameters[argument].default == eval(default, vars(hvd)), f"{name}: the default of {argument}"
    for parameter in parameters.values():
        assert parameter.name in dict(expected) or parameter.default is not parameter.empty, f"{name}: Horovod's callers do not give {parameter.name}"


@pytest.mark.parametrize("name", sorted({f[0].split(".")[0] for f in facts()} | set(OTHER_NAMES)))
def test_every_name_is_there_or_on_the_list(name):
    assert hasattr(hvd, name) is (name not in MISSING)


def test_the_list_names_nothing_else():
    arguments = {argument for _, expected in facts() for argument, _ in expected}
    assert set(MISSING) <= {f[0].split(".")[0] for f in facts()} | set(OTHER_NAMES)
    assert set(MISSING_ARGUMENTS) <= arguments
