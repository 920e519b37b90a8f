"""The array-level collectives in a world of one; tests/parallel has them on more."""

import numpy as np
import pytest

import hvdlite as hvd


@pytest.fixture(autouse=True)
def _world(monkeypatch):
    monkeypatch.setenv("HVDLITE_TRANSPORT", "local")
    hvd.init()
    yield
    hvd.shutdown()


def test_results_are_new_arrays_in_the_same_shape():
    for array in (np.arange(6.0).reshape(2, 3), np.array(3), np.zeros((0, 2)), np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.arange(10)[::2]):
        for result in (hvd.allreduce(array), hvd.broadcast(array, 0), hvd.allgather(array) if array.ndim else hvd.allreduce(array)):
            assert result is not array
            assert not np.shares_memory(result, array)
            assert result.shape == array.shape
            assert result.dtype == array.dtype
            assert np.array_equal(result, array)


def test_async_works_in_place():
    array = np.arange(4, dtype=np.float32)
    handle = hvd.allreduce_async([array], op=hvd.Sum, prescale_factor=3.0, postscale_factor=0.5)
    handle.wait()
    assert handle.done()
    assert array.tolist() == [0, 1.5, 3, 4.5]


def test_objects():
    thing = {"a": [1, 2.5, None], "b": np.arange(3)}
    assert hvd.broadcast_object(thing) is thing
    (found,) = hvd.allgather_object(thing)
    assert found["a"] == thing["a"]
    assert np.array_equal(found["b"], thing["b"])
    hvd.barrier()


@pytest.mark.parametrize("root", [-1, 1, 7])
def test_a_root_that_does_not_exist(root):
    with pytest.raises(hvd.SettingError, match=f"root_rank={root} does not exist; a rank from 0 to 0 is expected"):
        hvd.broadcast(np.ones(2), root)
    with pytest.raises(hvd.SettingError, match=f"root_rank={root} does not exist"):
        hvd.broadcast_object(3, root)


def test_bad_arguments():
    with pytest.raises(ValueError, match="9 is not a valid ReduceOp"):
        hvd.allreduce(np.ones(2), op=9)
    with pytest.raises(hvd.SettingError, match="is a scalar"):
        hvd.allgather(np.array(1.0))
    with pytest.raises(hvd.SettingError, match="has dtype object"):
        hvd.allreduce(np.array([None]))
    with pytest.raises(hvd.CompressionError, match="unknown compressor 'zip'"):
        hvd.allreduce(np.ones(2), compression="zip")
    with pytest.raises(hvd.SettingError, match=r"compression=3 is a int; a spec such as"):
        hvd.allreduce(np.ones(2), compression=3)
    with pytest.raises(ValueError, match="zip"):
        hvd.broadcast_async([np.ones(2)], 0, names=["a", "b"])


def test_what_means_no_compression():
    assert hvd.as_compressor(None) is None
    assert hvd.as_compressor("none") is None
    assert hvd.as_compressor("fp16").spec == "fp16"
    compressor = hvd.as_compressor("topk")
    assert hvd.as_compressor(compressor) is compressor


def test_a_handles_error_is_raised_every_time():
    handle = hvd.Handle("x")
    assert not handle.done()
    handle.fail(ValueError("no"))
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            handle.wait()
    assert handle.done()


def test_names_of_unnamed_calls_count_by_kind():
    world = hvd.world()
    assert [world.auto_name("allreduce"), world.auto_name("barrier"), world.auto_name("allreduce")] == [
        "allreduce.noname.1",
        "barrier.noname.1",
        "allreduce.noname.2",
    ]
