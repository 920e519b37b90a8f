"""What users type, and what they are told when it cannot be read."""

import pytest

from hvdlite.compression import Compressor, ErrorFeedback, load, names
from hvdlite.errors import CompressionError


@pytest.mark.parametrize(
    "spec",
    ["topk", "topk:density=0.05", "topk:density=0.05,feedback=false", "topk:feedback=false", "powersgd:rank=2,min_compression_rate=3.0", "none:feedback=true"],
)
def test_a_spec_says_what_was_typed(spec):
    assert load(spec).spec == spec


@pytest.mark.parametrize(
    ("typed", "spec"),
    [
        (" topk ", "topk"),
        ("topk:", "topk"),
        ("topk:density=0.01", "topk"),
        ("topk: density = .5 , feedback = true", "topk:density=0.5"),
        ("powersgd:min_compression_rate=2,rank=8", "powersgd:rank=8"),
        ("fp16:feedback=false", "fp16"),
    ],
)
def test_a_spec_holds_only_what_differs_from_the_defaults(typed, spec):
    assert load(typed).spec == spec
    assert load(load(typed).spec).spec == spec


def test_options_come_as_values_too():
    assert load("topk", density=0.5).spec == "topk:density=0.5"
    assert load("topk:density=0.1", density=0.5, feedback=False).spec == "topk:density=0.5,feedback=false"


@pytest.mark.parametrize("name", names())
def test_feedback_is_on_where_something_is_lost(name):
    compressor = load(name)
    refused = load(f"{name}:feedback=false")
    assert isinstance(compressor, ErrorFeedback) is type(refused).biased
    assert not isinstance(refused, ErrorFeedback)
    assert isinstance(refused, Compressor)
    assert isinstance(load(f"{name}:feedback=true"), ErrorFeedback)


def text_of(spec: str, **options: object) -> str:
    with pytest.raises(CompressionError) as raised:
        load(spec, **options)
    return str(raised.value)


def test_an_unknown_name_lists_the_choices():
    assert text_of("zip") == f"unknown compressor 'zip'; choose one of {', '.join(names())}; e.g. topk:density=0.01"
    assert text_of("_contract").startswith("unknown compressor '_contract'; ")
    assert text_of("").startswith("unknown compressor ''; ")


def test_an_unknown_option_lists_the_known_ones():
    assert text_of("topk:rank=4") == "topk has no option 'rank' (in 'topk:rank=4'); its options are density, feedback; correct or drop it"
    assert (
        text_of("powersgd:_q=1") == "powersgd has no option '_q' (in 'powersgd:_q=1'); its options are rank, min_compression_rate, feedback; correct or drop it"
    )
    assert text_of("fp16", density=1) == "fp16 has no option 'density' (in 'fp16'); its options are feedback; correct or drop it"


@pytest.mark.parametrize("part", ["0.5", "density=", "=4", "density"])
def test_an_option_that_cannot_be_read(part):
    assert text_of(f"topk:{part}") == f"cannot read {part!r} in 'topk:{part}'; expected name:option=value,option=value; e.g. powersgd:rank=4"


def test_a_value_of_the_wrong_type():
    assert text_of("topk:density=much") == "density=much in 'topk:density=much' is not a number; give a value such as 0.01"
    assert text_of("powersgd:rank=2.5") == "rank=2.5 in 'powersgd:rank=2.5' is not a whole number; give a value such as 4"
    assert text_of("topk:feedback=perhaps") == "feedback=perhaps in 'topk:feedback=perhaps' is not true or false; give a value such as true"


def test_the_error_is_a_value_error():
    assert issubclass(CompressionError, ValueError)
