"""The pure parts of the optimizer: names of parameters, groups, and what is said when ranks differ."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvdlite.torch.gradients import name_parameters, number_groups


def parameters(count):
    return [torch.nn.Parameter(torch.zeros(i + 1)) for i in range(count)]


def test_names_follow_the_optimizers_parameters_in_its_order():
    a, b, c = parameters(3)
    named = name_parameters([{"params": [c]}, {"params": [a]}], [("a", a), ("b", b), ("c", c)])
    assert [name for name, _ in named] == ["c", "a"]
    assert named[0][1] is c


def test_without_names_the_place_is_the_name():
    a, b, c = parameters(3)
    assert [n for n, _ in name_parameters([{"params": [a, b]}, {"params": [c]}], None)] == ["group.0.0", "group.0.1", "group.1.0"]


def test_names_that_the_optimizer_knows_are_used_where_none_is_given():
    a, b = parameters(2)
    groups = torch.optim.SGD([("first", a), ("second", b)], lr=0.1).param_groups
    assert [n for n, _ in name_parameters(groups, None)] == ["first", "second"]
    assert [n for n, _ in name_parameters(groups, [("mine", a), ("yours", b)])] == ["mine", "yours"]


def test_a_shared_parameter_goes_by_its_first_name():
    (a,) = parameters(1)
    assert name_parameters([{"params": [a]}], [("first", a), ("second", a)])[0][0] == "first"


def test_a_generator_of_names_will_do():
    model = torch.nn.Linear(2, 2)
    groups = torch.optim.SGD(model.parameters(), lr=0.1).param_groups
    assert [n for n, _ in name_parameters(groups, model.named_parameters())] == ["weight", "bias"]


def test_names_that_cannot_be_used_are_answered_in_horovods_words():
    a, b = parameters(2)
    groups = [{"params": [a, b]}]
    with pytest.raises(
        ValueError, match=r"^named_parameters should be a sequence of tuples \(name, parameter\), usually produced by model\.named_parameters\(\)\.$"
    ):
        name_parameters(groups, [a, b])
    with pytest.raises(ValueError, match=r"^Parameter names in named_parameters must be unique\. Found duplicates: x$"):
        name_parameters(groups, [("x", a), ("x", b)])
    with pytest.raises(ValueError, match=rf"one or more model parameters were not named\. Python object ids: {id(b)}$"):
        name_parameters(groups, [("x", a)])


@given(st.integers(1, 30), st.integers(1, 40))
def test_a_number_of_groups_splits_evenly_in_order(count, groups):
    ps = parameters(count)
    numbered = number_groups(groups, ps)
    numbers = [numbered[p] for p in ps]
    sizes = [numbers.count(g) for g in range(groups)]
    assert numbers == sorted(numbers)
    assert max(sizes) - min(sizes) <= 1


def test_lists_name_the_groups_and_leave_the_rest_alone():
    a, b, c = parameters(3)
    assert number_groups([[c], (a,)], [a, b, c]) == {c: 0, a: 1}


@pytest.mark.parametrize("nothing", [None, 0, []], ids=str)
def test_no_groups(nothing):
    assert number_groups(nothing, parameters(2)) == {}


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "all", [1, 2], {"a": 1}], ids=str)
def test_groups_that_cannot_be_used(wrong):
    with pytest.raises(ValueError, match=r"^groups should be a non-negative integer or a list of list of torch\.Tensor\.$"):
        number_groups(wrong, parameters(2))


def test_members_that_cannot_be_used():
    (a,) = parameters(1)
    with pytest.raises(ValueError, match=r"^groups must consist of torch\.Tensor\.$"):
        number_groups([[a, "b"]], [a])
    with pytest.raises(ValueError, match=r"^A parameter can only appear once in groups\.$"):
        number_groups([[a], [a]], [a])
