"""Tensors as arrays and back: no copy for contiguous CPU tensors, one for the others."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import torch

from hvdlite import Array, SettingError

_BY_BITS = {  # dtypes that numpy lacks travel through an integer view of the same width
    torch.bfloat16: (torch.int16, np.dtype(ml_dtypes.bfloat16)),
    torch.float8_e4m3fn: (torch.int8, np.dtype(ml_dtypes.float8_e4m3fn)),
    torch.float8_e5m2: (torch.int8, np.dtype(ml_dtypes.float8_e5m2)),
}
_BACK = {numpy_type: (bits, torch_type) for torch_type, (bits, numpy_type) in _BY_BITS.items()}
_NUMPY_BITS = {torch.int16: np.dtype(np.int16), torch.int8: np.dtype(np.int8)}


def as_array(tensor: torch.Tensor) -> Array:
    """The contiguous CPU tensor's memory as an array."""
    tensor = tensor.detach()
    if tensor.dtype in _BY_BITS:
        bits, numpy_type = _BY_BITS[tensor.dtype]
        return tensor.view(bits).numpy().view(numpy_type)
    return tensor.numpy()


def as_tensor(array: Array) -> torch.Tensor:
    """The array's memory as a tensor."""
    if array.dtype in _BACK:
        bits, torch_type = _BACK[array.dtype]
        return torch.from_numpy(array.view(_NUMPY_BITS[bits])).view(torch_type)
    return torch.from_numpy(array)


def check(tensor: torch.Tensor, name: str | None) -> None:
    """Raise for tensors that cannot be exchanged.

    Raises:
        SettingError: the tensor is sparse, or does not lie in main memory.
    """
    if tensor.layout is not torch.strided:
        raise SettingError(
            f"{name or 'the tensor'} is sparse ({tensor.layout}); a dense tensor is expected; call to_dense(), or pass sparse_as_dense=True to the optimizer"
        )
    if tensor.device.type != "cpu":
        raise SettingError(f"{name or 'the tensor'} lies on {tensor.device}; this version of hvdlite exchanges CPU tensors; move it with .cpu()")


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor contiguous, with a lazy conjugation or negation carried out; the same memory where nothing is to be done."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def borrowed(tensor: torch.Tensor, name: str | None) -> tuple[Array, Callable[[], None]]:
    """An array to be written in place of the tensor, and what to call when that is done."""
    check(tensor, name)
    copy = plain(tensor)
    if copy.data_ptr() == tensor.data_ptr():
        return as_array(copy), lambda: None

    def write_back() -> None:
        with torch.no_grad():
            tensor.copy_(copy)

    return as_array(copy), write_back


def copied(tensor: torch.Tensor, name: str | None) -> torch.Tensor:
    """A contiguous copy to receive the result of an operation out of place."""
    check(tensor, name)
    return tensor.detach().clone(memory_format=torch.contiguous_format)
