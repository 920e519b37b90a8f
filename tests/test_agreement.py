"""What ranks compare before they train, put into words."""

import numpy as np
import pytest

import hvdlite
from hvdlite.agreement import check_start, first_difference, override, unique_names
from hvdlite.compression import load

MODEL = [("w", (2, 3), "float32"), ("b", (3,), "float32")]


def test_equal_models_do_not_differ():
    assert first_difference([MODEL, list(MODEL), list(MODEL)]) is None
    assert first_difference([[], []]) is None


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ([("w", (2, 4), "float32"), MODEL[1]], "'w' has shape (2, 3) on rank 0 but (2, 4) on rank 2"),
        ([MODEL[0], ("b", (3,), "float64")], "'b' has dtype float32 on rank 0 but float64 on rank 2"),
        ([MODEL[0]], "rank 0 trains 'b' where rank 2 trains 'nothing'"),
        ([*MODEL, ("c", (1,), "float32")], "rank 0 trains 'nothing' where rank 2 trains 'c'"),
        (MODEL[::-1], "rank 0 trains 'w' where rank 2 trains 'b'"),
    ],
)
def test_the_first_difference_is_put_into_words(other, words):
    assert words in first_difference([MODEL, MODEL, other])


@pytest.fixture
def alone(monkeypatch):
    monkeypatch.setenv("HVDLITE_TRANSPORT", "local")
    yield
    hvdlite.shutdown()


def test_the_environment_names_the_compressor(alone, monkeypatch, caplog):
    monkeypatch.setenv("HVDLITE_COMPRESSION", "int8")
    hvdlite.init()
    assert override("fp16", load("fp16")) == "int8"
    assert "HVDLITE_COMPRESSION=int8 replaces the script's compression fp16" in caplog.text
    caplog.clear()
    assert override(None, None) == "int8"
    assert not caplog.text


def test_without_a_word_from_the_environment_the_script_chooses(alone):
    hvdlite.init()
    chosen = object()
    assert override(chosen, load("fp16")) is chosen


@pytest.mark.parametrize("mode", ["error", "warn", "off"])
def test_other_weights_are_named_with_the_remedy(mode, alone, monkeypatch, caplog):
    monkeypatch.setenv("HVDLITE_CHECK_PARAMETERS", mode)
    hvdlite.init()
    monkeypatch.setattr("hvdlite.agreement.objects_by_rank", lambda mine, process_set: {0: mine, 1: mine, 2: [mine[0], b"other"]})
    weights = [("a", np.zeros(3)), ("b", np.ones((), np.float16))]
    expected = "ranks 0 and 2 start training from different weights: 1 of 2 parameters differ, first 'b'; equal weights are expected; call this() before"
    if mode == "error":
        with pytest.raises(hvdlite.SettingError) as caught:
            check_start(weights, "this()")
        assert expected in str(caught.value)
    else:
        check_start(weights, "this()")
        assert (expected in caplog.text) == (mode == "warn")


def test_equal_weights_are_silent(alone, caplog):
    hvdlite.init()
    check_start([("a", np.zeros(3)), ("empty", np.zeros((0, 2)))], "this()")
    assert "weights" not in caplog.text


def test_names_leave_out_how_many_layers_a_process_has_built():
    assert unique_names(["sequential_3/dense_7/kernel", "adam/sequential_3_dense_7_kernel"]) == ["sequential/dense/kernel", "adam/sequential_dense_kernel"]
    assert unique_names(["dense/kernel", "dense_1/kernel", "dense_1x/kernel", "x2"]) == ["dense/kernel", "dense/kernel#2", "dense_1x/kernel", "x2"]
