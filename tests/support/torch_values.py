"""What each rank gives to a collective on tensors, and what the ranks together make of it: every rank can compute both."""

import torch

import hvdlite.torch as hvd

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
COMPLEX = [torch.complex64, torch.complex128]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
OPS = [hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product]


def values(dtype, rank, shape=(5, 7)):
    """What ``rank`` gives: small whole numbers and halves, so that no rounding hides a mistake."""
    rng = torch.Generator().manual_seed(100 + rank)
    whole = torch.randint(0, 4, shape, generator=rng)
    if dtype is torch.bool:
        return whole > 1
    if dtype.is_complex:
        return torch.complex(whole.double(), whole.flip(0).double() - 1).to(dtype)
    if dtype.is_floating_point or dtype.is_signed:
        whole = whole - 2
    return (whole / 2).to(dtype) if dtype.is_floating_point else whole.to(dtype)


def combined(dtype, op, size, shape=(5, 7)):
    """The ranks' values combined here, without any communication."""
    wide = torch.complex128 if dtype.is_complex else torch.float64
    everyone = torch.stack([values(dtype, r, shape) for r in range(size)]).to(wide)
    if op is hvd.Sum:
        result = everyone.sum(0)
    elif op is hvd.Average:
        result = everyone.sum(0) / size
    elif op is hvd.Product:
        result = everyone.prod(0)
    else:
        result = everyone.amin(0) if op is hvd.Min else everyone.amax(0)
    return (result if wide is torch.complex128 or dtype.is_floating_point else result.trunc()).to(dtype)
