import pytest

from hvdlite.abtest.arms import entangled, parse_arms
from hvdlite.compression import names
from hvdlite.errors import CompressionError, SettingError


@pytest.mark.parametrize(
    ("written", "arms"),
    [
        ("none,fp16,powersgd:rank=4,topk:density=0.01", ["none", "fp16", "powersgd:rank=4", "topk:density=0.01"]),
        ("topk:density=0.01,feedback=false,int8", ["topk:density=0.01,feedback=false", "int8"]),
        ("topk:density=0.01, feedback=false , int8", ["topk:density=0.01,feedback=false", "int8"]),
        ("fp16,none", ["none", "fp16"]),
    ],
)
def test_commas_between_arms_and_between_options(written, arms):
    assert parse_arms(written, baselines=False) == arms


def test_every_compressor_can_be_an_arm():
    assert set(parse_arms(",".join(names()), baselines=False)) == set(names())


def test_the_honest_baselines_are_added_once_and_none_comes_first():
    assert parse_arms("int8") == ["none", "fp16", "int8"]
    assert parse_arms("fp16,int8") == ["none", "fp16", "int8"]
    assert parse_arms("int8,none") == ["none", "fp16", "int8"]
    assert parse_arms("int8,topk", baselines=False) == ["int8", "topk"]


@pytest.mark.parametrize(
    ("written", "error", "words"),
    [
        ("none,nosuch", CompressionError, "unknown compressor 'nosuch'"),
        ("topk:density=7", CompressionError, "density"),
        ("int8,topk:density=0.01,topk", SettingError, "'topk:density=0.01' and 'topk' are the same compressor"),
    ],
)
def test_what_is_no_comparison_is_refused(written, error, words):
    with pytest.raises(error, match=words):
        parse_arms(written)


@pytest.mark.parametrize("written", ["", "int8", " , "])
def test_one_arm_compares_with_nothing(written):
    with pytest.raises(SettingError, match="at least two are expected"):
        parse_arms(written, baselines=False)


def test_arms_that_differ_in_more_than_one_option_are_flagged():
    assert entangled(["none", "fp16", "topk:density=0.01", "topk:density=0.05", "topk:density=0.01,feedback=false"]) == [
        "topk:density=0.05 and topk:density=0.01,feedback=false differ in density and feedback: what differs between them cannot be put down to one of these"
    ]
