"""The words of Horovod: averages, and what can be passed as compression."""

import pytest
import torch
from torch_values import combined, values

import hvdlite
import hvdlite.torch as hvd


@pytest.mark.parametrize("call", [hvd.allreduce, hvd.allreduce_, hvd.allreduce_async, hvd.allreduce_async_])
def test_average_is_the_old_form_of_op(call, rank, size):
    def result(**how):
        found = call(values(torch.float32, rank), **how)
        return hvd.synchronize(found) if isinstance(found, hvd.Handle) else found

    torch.testing.assert_close(result(average=True), combined(torch.float32, hvd.Average, size))
    torch.testing.assert_close(result(average=False), combined(torch.float32, hvd.Sum, size))
    with pytest.raises(ValueError, match=r"^The op parameter supersedes average\. Please provide only one of them\.$"):
        call(torch.ones(1), average=True, op=hvd.Sum)


@pytest.mark.parametrize("spec", sorted(hvdlite.compression.names()))
def test_every_compressor_is_an_attribute_and_a_word(spec, rank, size):
    """On constants no compressor makes anything larger than the mean, or of another sign; and it makes the same of them on every rank."""
    attribute = getattr(hvd.Compression, spec)
    given = torch.full((64, 64), float(rank + 1))
    result = hvd.allreduce(given, compression=spec, name=f"by.{spec}")
    assert torch.equal(result, hvd.allreduce(given, compression=attribute if isinstance(attribute, type) else attribute(), name=f"by.{spec}"))
    assert all(torch.equal(result, theirs) for theirs in hvd.allgather_object(result))
    assert result.min() >= -1e-3
    assert result.max() <= (size + 1) / 2 * 1.001
    assert spec in dir(hvd.Compression)


def test_horovods_two_classes_keep_their_methods():
    half, context = hvd.Compression.fp16.compress(torch.ones(3, dtype=torch.float64))
    assert half.dtype == torch.float16
    assert hvd.Compression.fp16.decompress(half, context).dtype == torch.float64
    whole, context = hvd.Compression.fp16.compress(torch.ones(3, dtype=torch.int32))
    assert whole.dtype == hvd.Compression.fp16.decompress(whole, context).dtype == torch.int32
    given = torch.ones(3)
    assert hvd.Compression.none.decompress(*hvd.Compression.none.compress(given)) is given


def test_an_unknown_compressor_is_answered_with_the_list():
    with pytest.raises(AttributeError, match=r"choose one of .*powersgd"):
        hvd.Compression.zip  # noqa: B018
    with pytest.raises(hvdlite.CompressionError, match="zip"):
        hvd.allreduce(torch.ones(3), compression="zip")


class Halved:
    """A compressor written for Horovod: it sends half of each number, in half precision."""

    @staticmethod
    def compress(tensor):
        return tensor.half() / 2, tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        return tensor.to(ctx) * 2


def test_a_users_horovod_compressor_works(rank, size):
    given = values(torch.float32, rank)
    assert torch.equal(hvd.allreduce(given, compression=Halved, op=hvd.Sum), combined(torch.float32, hvd.Sum, size))
    torch.testing.assert_close(hvd.allreduce(given, compression=Halved()), combined(torch.float32, hvd.Average, size), atol=2e-3, rtol=2e-3)
    group = hvd.grouped_allreduce([given, given * 2], compression=Halved, op=hvd.Sum)
    assert torch.equal(group[1], combined(torch.float32, hvd.Sum, size) * 2)
