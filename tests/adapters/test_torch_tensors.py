"""Tensors as arrays: the same memory, every bit, back and forth."""

import numpy as np
import pytest
import torch

from hvdlite import SettingError
from hvdlite.torch.tensors import as_array, as_tensor, borrowed, check, copied, plain

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.complex128,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
]  # fmt: skip


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_there_and_back_is_the_same_memory(dtype, shape):
    tensor = torch.ones(shape).to(dtype)
    array = as_array(tensor)
    assert str(array.dtype) == str(dtype).removeprefix("torch.")
    assert array.shape == shape
    back = as_tensor(array)
    assert back.dtype == dtype
    if tensor.numel():
        assert back.data_ptr() == tensor.data_ptr() == array.ctypes.data
    array[...] = 0
    assert not tensor.view(torch.uint8).any() if shape else not tensor.bool().any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_every_bit_pattern_means_the_same_number(dtype):
    bits = torch.arange(256 if dtype.itemsize == 1 else 65536, dtype=torch.int32).to(torch.uint8 if dtype.itemsize == 1 else torch.uint16)
    tensor = bits.view(dtype)
    np.testing.assert_array_equal(as_array(tensor).astype(np.float32), tensor.float().numpy())


def test_a_contiguous_tensor_is_lent_and_another_is_written_back():
    tensor = torch.zeros(2, 3, requires_grad=True)
    array, write_back = borrowed(tensor, None)
    array[...] = 1
    write_back()
    assert (tensor == 1).all()
    turned = torch.zeros(2, 3).t()
    array, write_back = borrowed(turned, None)
    array[...] = np.arange(6).reshape(3, 2)
    assert not turned.any()
    write_back()
    assert torch.equal(turned, torch.arange(6.0).view(3, 2))


def test_plain_carries_out_what_is_lazy_and_copies_nothing_else():
    tensor = torch.tensor([1 + 2j])
    assert plain(tensor).data_ptr() == tensor.data_ptr()
    assert as_array(plain(tensor.conj()))[0] == 1 - 2j
    assert as_array(plain(tensor.conj().imag))[0] == -2


def test_a_copy_is_nobodys_but_the_callers():
    tensor = torch.zeros(3, 2).t()
    copy = copied(tensor, None)
    copy += 1
    assert copy.is_contiguous()
    assert not tensor.any()


def test_what_cannot_be_exchanged_is_named():
    with pytest.raises(SettingError, match=r"^w is sparse .*sparse_as_dense=True"):
        check(torch.eye(2).to_sparse(), "w")
    with pytest.raises(SettingError, match=r"^the tensor lies on meta; .* move it with \.cpu\(\)$"):
        check(torch.empty(2, device="meta"), None)
