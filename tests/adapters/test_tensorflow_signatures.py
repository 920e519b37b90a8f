"""The functions of hvdlite.tensorflow and hvdlite.keras take what Horovod's take: a call written for one works with the other."""

import ast
import inspect
from functools import reduce
from importlib import import_module

import pytest
from horovod_tensorflow_api import KERAS, OTHER_NAMES, TENSORFLOW, TENSORFLOW_KERAS

TABLES = {"hvdlite.tensorflow": TENSORFLOW, "hvdlite.tensorflow.keras": TENSORFLOW_KERAS, "hvdlite.keras": KERAS}

SETS, ELASTIC = "sets of ranks are still to come", "jobs whose number of ranks changes are still to come"
MAY_BE_MISSING = {
    "ProcessSet": SETS,
    "global_process_set": SETS,
    "add_process_set": SETS,
    "remove_process_set": SETS,
    "process_set_included_op": SETS,
    "elastic": ELASTIC,
}
# Where Horovod's two modules for Keras differ, hvdlite's one takes what tensorflow.keras takes. By keyword, calls for either work.
OTHERWISE = {
    ("hvdlite.keras", "DistributedOptimizer"): "tensorflow.keras has more arguments before num_groups",
    ("hvdlite.keras", "callbacks.BestModelCheckpoint"): "tensorflow.keras has save_weights_only before mode",
    ("hvdlite.keras", "allreduce"): "average=None means the mean, as average=True does",
    ("hvdlite.tensorflow", "SyncBatchNormalization"): "fused= is found among the layer's own arguments",
}


def find(module: str, path: str):
    return reduce(getattr, path.split("."), import_module(module))


def facts(table: str):
    """``(name, [(argument, source of its default, None if it has none)])`` of every function in a table."""
    for line in filter(None, table.split("\n")):
        call = ast.parse(line, mode="eval").body
        yield ast.unparse(call.func), [(a.id, None) for a in call.args] + [(k.arg, ast.unparse(k.value)) for k in call.keywords]


EVERY = [(module, *fact) for module, table in TABLES.items() for fact in facts(table)]


@pytest.mark.parametrize(("module", "name", "expected"), [pytest.param(*fact, id=f"{fact[0]}.{fact[1]}") for fact in EVERY if fact[1] not in MAY_BE_MISSING])
def test_arguments_their_order_and_defaults(module, name, expected):
    parameters = inspect.signature(find(module, name)).parameters
    names = [argument for argument, _ in expected]
    if (module, name) not in OTHERWISE:
        assert [p.name for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD][: len(names)] == names
        for argument, default in expected:
            found = parameters[argument].default
            if argument == "process_set":
                assert found is None or found.process_set_id == 0
            elif default is not None:
                assert found == eval(default, vars(import_module(module))), f"{name}: the default of {argument}"
    takes_more = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    assert takes_more or set(names) <= set(parameters)
    for parameter in parameters.values():
        has_default = parameter.default is not parameter.empty or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        assert parameter.name in names or has_default, f"{name}: Horovod's callers do not give {parameter.name}"


def test_what_is_otherwise_is_in_the_tables():
    assert set(OTHERWISE) <= {(module, name) for module, name, _ in EVERY}


@pytest.mark.parametrize("module", TABLES)
def test_every_name_is_there(module):
    wanted = {name for where, name, _ in EVERY if where == module} | set(OTHER_NAMES[module])
    missing = []
    for name in sorted(wanted - set(MAY_BE_MISSING)):
        try:
            find(module, name)
        except AttributeError:
            missing.append(name)
    assert not missing
