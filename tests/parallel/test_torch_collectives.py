"""The collectives on tensors, against the same sum done locally: every rank can compute what every rank gave."""

import gc

import pytest
import torch

import hvdlite
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


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", FLOATS + COMPLEX + INTEGERS, ids=str)
def test_allreduce_equals_the_local_computation(dtype, op, rank, size):
    if dtype.is_complex and op in (hvd.Min, hvd.Max):
        with pytest.raises(ValueError, match="complex"):
            hvd.allreduce(values(dtype, rank), op=op)
        return
    given = values(dtype, rank)
    result = hvd.allreduce(given, op=op)
    assert result.dtype == dtype
    torch.testing.assert_close(result, combined(dtype, op, size))
    assert torch.equal(given, values(dtype, rank))
    assert hvd.allreduce_(given, op=op) is given
    assert torch.equal(given, result)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_booleans_know_any_and_all_only(op, rank, size):
    given = values(torch.bool, rank)
    if op in (hvd.Min, hvd.Max):
        assert torch.equal(hvd.allreduce(given, op=op), combined(torch.bool, op, size))
    else:
        with pytest.raises(ValueError, match="boolean"):
            hvd.allreduce(given, op=op)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64], ids=str)
def test_factors_multiply_before_and_after(dtype, rank, size):
    result = hvd.allreduce(values(dtype, rank) * 4, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    torch.testing.assert_close(result, combined(dtype, hvd.Sum, size) * 6)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (2, 3, 4, 5)], ids=str)
def test_any_shape(shape, rank, size):
    given = values(torch.float32, rank, shape)
    torch.testing.assert_close(hvd.allreduce(given), combined(torch.float32, hvd.Average, size, shape))
    assert torch.equal(hvd.broadcast(given, size - 1), values(torch.float32, size - 1, shape))


STRIDED = {
    "transposed": lambda t: t.t(),
    "every other": lambda t: t[:, ::2],
    "channels last": lambda t: t.reshape(1, 5, 7, 1).expand(2, 5, 7, 2).contiguous(memory_format=torch.channels_last),
    "a column": lambda t: t[:, 3],
}


@pytest.mark.parametrize("make", STRIDED.values(), ids=STRIDED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tensors_need_not_be_contiguous(make, dtype, rank, size):
    expected = make(combined(dtype, hvd.Sum, size))
    given = make(values(dtype, rank))
    strides = given.stride()
    assert torch.equal(hvd.allreduce(given, op=hvd.Sum), expected)
    assert torch.equal(given, make(values(dtype, rank)))
    hvd.allreduce_(given, op=hvd.Sum)
    assert torch.equal(given, expected)
    assert given.stride() == strides
    given = make(values(dtype, rank))
    hvd.broadcast_(given, size - 1)
    assert torch.equal(given, make(values(dtype, size - 1)))
    gathered = hvd.allgather(make(values(dtype, rank)))
    assert torch.equal(gathered, torch.cat([make(values(dtype, r)) for r in range(size)]))


def test_only_the_view_is_written(rank, size):
    whole = torch.full((4, 4), -1.0)
    hvd.allreduce_(whole[1:3, ::2], op=hvd.Sum)
    assert torch.equal(whole[1:3, ::2], torch.full((2, 2), -float(size)))
    assert (whole == -1).sum() == 16 - (4 if size > 1 else 0)


def test_lazy_conjugates_and_negatives_are_what_they_look_like(rank, size):
    given = values(torch.complex64, rank)
    expected = combined(torch.complex64, hvd.Sum, size)
    assert torch.equal(hvd.allreduce(given.conj(), op=hvd.Sum), expected.conj())
    assert torch.equal(hvd.allreduce(given.conj().imag, op=hvd.Sum), -expected.imag)
    in_place = given.clone().conj()
    hvd.allreduce_(in_place, op=hvd.Sum)
    assert torch.equal(in_place, expected.conj())
    assert torch.equal(hvd.allgather(given.conj()), torch.cat([values(torch.complex64, r).conj() for r in range(size)]))


def test_asynchronous_calls_may_be_waited_for_in_any_order(rank, size):
    handles = [hvd.allreduce_async(values(torch.float32, rank) * i, op=hvd.Sum, name=f"any.order.{i}") for i in range(20)]
    for i in reversed(range(20)):
        assert torch.equal(hvd.synchronize(handles[i]), combined(torch.float32, hvd.Sum, size) * i)
        assert hvd.poll(handles[i])
    assert all(hvd.poll(h) for h in handles)


def test_poll_waits_for_the_last_rank(rank, size):
    """A handle is not done before every rank has submitted."""
    mine = torch.ones(3)
    if rank == size - 1 and size > 1:
        hvd.allreduce(torch.zeros(1), name="poll.gate")
        handle = hvd.allreduce_async_(mine, op=hvd.Sum, name="poll.late")
    else:
        handle = hvd.allreduce_async_(mine, op=hvd.Sum, name="poll.late")
        assert hvd.poll(handle) == (size == 1)
        hvd.allreduce(torch.zeros(1), name="poll.gate")
    assert hvd.synchronize(handle) is mine
    assert torch.equal(mine, torch.full((3,), float(size)))


def test_a_handle_keeps_its_tensor_alive(rank, size):
    handle = hvd.allreduce_async(torch.full((100_000,), float(rank)), op=hvd.Max, name="kept")
    gc.collect()
    torch.full((100_000,), -1.0)
    assert (hvd.synchronize(handle) == size - 1).all()


def test_groups_are_reduced_together_whatever_they_mix(rank, size):
    dtypes = [torch.float32, torch.float16, torch.int32, torch.float32]
    given = [values(d, rank, (i + 1, 3)) for i, d in enumerate(dtypes)]
    expected = [combined(d, hvd.Sum, size, (i + 1, 3)) for i, d in enumerate(dtypes)]
    for result in (hvd.grouped_allreduce(given, op=hvd.Sum), hvd.synchronize(hvd.grouped_allreduce_async(given, op=hvd.Sum, name="mixed"))):
        assert [r.dtype for r in result] == dtypes
        assert all(torch.equal(a, b) for a, b in zip(result, expected, strict=True))
    in_place = [t.clone() for t in given]
    returned = hvd.grouped_allreduce_(in_place, op=hvd.Sum)
    assert all(a is b for a, b in zip(returned, in_place, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(in_place, expected, strict=True))
    assert hvd.grouped_allreduce([], op=hvd.Sum) == []


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX, *INTEGERS, torch.bool], ids=str)
def test_allgather_of_other_lengths(dtype, rank, size):
    """Rank r gives r rows; rank 0 none."""
    gathered = hvd.allgather(values(dtype, rank, (rank, 3)))
    assert gathered.dtype == dtype
    assert torch.equal(gathered, torch.cat([values(dtype, r, (r, 3)) for r in range(size)]))
    gathered.add_(0) if dtype is not torch.bool else gathered.logical_not_()  # the result is the caller's own


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX, *INTEGERS, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16], ids=str)
def test_broadcast_from_every_root(dtype, rank, size):
    def of(r):
        return values(torch.float32, r).to(dtype) if dtype.itemsize == 1 and dtype.is_floating_point else values(dtype, r)

    for root in range(size):
        given = of(rank)
        assert torch.equal(hvd.broadcast(given, root).float(), of(root).float()) if not dtype.is_complex else torch.equal(hvd.broadcast(given, root), of(root))
        assert hvd.broadcast_(given, root) is given
        assert torch.equal(given.view(torch.uint8), of(root).view(torch.uint8))


def test_a_scalar_cannot_be_gathered_and_says_so():
    with pytest.raises(ValueError, match="scalar"):
        hvd.allgather(torch.tensor(1.0))


def test_a_root_that_does_not_exist_is_named(size):
    with pytest.raises(ValueError, match=f"root_rank={size}"):
        hvd.broadcast(torch.zeros(1), size)


def test_sparse_tensors_are_refused_before_anything_is_sent():
    sparse = torch.eye(3).to_sparse()
    for call in (hvd.allreduce, hvd.allreduce_, hvd.allgather, lambda t: hvd.broadcast(t, 0)):
        with pytest.raises(hvdlite.SettingError, match="sparse"):
            call(sparse)


# --- derivatives: the loss is the sum over the ranks of each rank's own, except where Horovod averages ---


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum], ids=lambda op: op.name)
def test_the_gradient_of_allreduce_is_the_allreduce_of_the_gradient(op, rank, size):
    leaf = values(torch.float64, rank).requires_grad_()
    weight = values(torch.float64, rank + 50)
    (hvd.allreduce(leaf, op=op) * weight).sum().backward()
    everyone = torch.stack([values(torch.float64, r + 50) for r in range(size)])
    torch.testing.assert_close(leaf.grad, everyone.mean(0) if op is hvd.Average else everyone.sum(0))


def test_the_gradient_of_allreduce_follows_its_factors(rank, size):
    leaf = torch.ones(3, dtype=torch.float64, requires_grad=True)
    hvd.allreduce(leaf, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0).sum().backward()
    torch.testing.assert_close(leaf.grad, torch.full((3,), 1.5 * size, dtype=torch.float64))


def test_the_gradient_of_a_group_reaches_each_member(rank, size):
    leaves = [torch.ones(2, requires_grad=True), torch.ones(3), torch.ones(4, requires_grad=True)]
    first, _, last = hvd.grouped_allreduce(leaves, op=hvd.Sum)
    (first.sum() * (rank + 1) + last.sum()).backward()
    assert torch.equal(leaves[0].grad, torch.full((2,), float(sum(range(1, size + 1)))))
    assert leaves[1].grad is None
    assert torch.equal(leaves[2].grad, torch.full((4,), float(size)))


def test_the_gradient_of_a_minimum_is_refused(size):
    leaf = torch.ones(3, requires_grad=True)
    with pytest.raises(ValueError, match="op=Min is not defined"):
        hvd.allreduce(leaf, op=hvd.Min).sum().backward()


def test_the_gradient_of_allgather_is_the_mean_for_ones_own_rows(rank, size):
    leaf = values(torch.float64, rank, (rank + 1, 2)).requires_grad_()
    rows = size * (size + 1) // 2
    weight = values(torch.float64, rank + 50, (rows, 2))
    (hvd.allgather(leaf) * weight).sum().backward()
    mean = torch.stack([values(torch.float64, r + 50, (rows, 2)) for r in range(size)]).mean(0)
    start = rank * (rank + 1) // 2
    torch.testing.assert_close(leaf.grad, mean[start : start + rank + 1])


def test_the_gradient_of_broadcast_goes_to_the_root(rank, size):
    leaf = values(torch.float64, rank).requires_grad_()
    weight = values(torch.float64, rank + 50)
    (hvd.broadcast(leaf, size - 1) * weight).sum().backward()
    mean = torch.stack([values(torch.float64, r + 50) for r in range(size)]).mean(0)
    torch.testing.assert_close(leaf.grad, mean if rank == size - 1 else torch.zeros_like(mean))


def test_without_grad_mode_nothing_is_recorded(rank):
    leaf = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        assert not hvd.allreduce(leaf).requires_grad
        assert not hvd.allgather(leaf).requires_grad
        assert not hvd.broadcast(leaf, 0).requires_grad


# --- state ---


def build_model(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 2, dtype=torch.float32))


FORMS = {
    "state_dict": lambda m: m.state_dict(),
    "named_parameters": lambda m: m.named_parameters(),
    "list of pairs": lambda m: list(m.state_dict().items()),
    "tuple of tensors": lambda m: tuple(m.state_dict().values()),
    "generator of tensors": lambda m: (t for t in m.state_dict().values()),
    "parameters": lambda m: m.parameters(),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_broadcast_parameters_takes_every_form(form, rank, size):
    model, wanted = build_model(rank), build_model(size - 1)
    leaves = list(model.parameters())
    hvd.broadcast_parameters(form(model), root_rank=size - 1)
    for mine, theirs in zip(model.state_dict().values(), wanted.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)
    assert all(a is b and a.requires_grad and a.is_leaf for a, b in zip(leaves, model.parameters(), strict=True))


def test_broadcast_parameters_ignores_the_order_of_a_state_dict_and_what_is_no_tensor(rank, size):
    given = {"a": torch.full((2,), float(rank)), "b": torch.full((3,), 10.0 + rank), "steps": 3, "none": None}
    if rank % 2:
        given = dict(reversed(given.items()))
    hvd.broadcast_parameters(given, 0)
    assert torch.equal(given["a"], torch.zeros(2))
    assert torch.equal(given["b"], torch.full((3,), 10.0))
    hvd.broadcast_parameters({}, 0)


@pytest.mark.parametrize("wrong", [3, None, torch.zeros(2)], ids=["number", "none", "tensor"])
def test_broadcast_parameters_refuses_what_holds_no_parameters(wrong):
    with pytest.raises(ValueError, match="invalid params of type"):
        hvd.broadcast_parameters(wrong, 0)


def test_models_that_differ_are_named_by_broadcast_parameters(rank, size):
    model = torch.nn.Linear(4, 6 if rank else 5)
    if size == 1:
        return
    with pytest.raises(hvdlite.MismatchError, match=r"'weight' has shape \(5, 4\) on rank 0 but \(6, 4\) on rank 1"):
        hvd.broadcast_parameters([("weight", model.weight)], 0)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == size  # the session goes on


def optimizers():
    """Every optimizer of torch that has parameters of its own to take; learning rates are the defaults."""
    kinds = [k for k in vars(torch.optim).values() if isinstance(k, type) and issubclass(k, torch.optim.Optimizer)]
    return {k.__name__: k for k in kinds if k not in (torch.optim.Optimizer, torch.optim.LBFGS)}


def a_step(kind, model, optimizer):
    for p in model.parameters():
        p.grad = torch.ones_like(p)
        if kind is torch.optim.SparseAdam:
            p.grad = p.grad.to_sparse()
    optimizer.step()
    optimizer.zero_grad()


def flattened(state):
    if isinstance(state, dict):
        return {f"{k}/{name}": v for k, part in state.items() for name, v in flattened(part).items()}
    if isinstance(state, (list, tuple)):
        return flattened(dict(enumerate(state)))
    return {"": state}


@pytest.mark.parametrize("has_state", ["every rank", "the root", "the others"])
@pytest.mark.parametrize("kind", optimizers().values(), ids=optimizers())
def test_broadcast_optimizer_state_equals_the_roots_and_takes_no_step(kind, has_state, rank, size):
    torch.manual_seed(rank)
    root = size - 1
    model = torch.nn.Linear(3, 2, bias=False)
    optimizer = kind(model.parameters(), lr=0.01 * (rank + 1))
    if has_state == "every rank" or (has_state == "the root") == (rank == root):
        for _ in range(rank + 1):
            a_step(kind, model, optimizer)
    weights = model.weight.detach().clone()
    hvd.broadcast_optimizer_state(optimizer, root)
    assert torch.equal(model.weight, weights)
    everyone = hvd.allgather_object(optimizer.state_dict())
    for theirs in everyone:
        mine, other = flattened(everyone[root]), flattened(theirs)
        assert mine.keys() == other.keys()
        for key, value in mine.items():
            assert torch.equal(value, other[key]) if isinstance(value, torch.Tensor) else value == other[key], key
    assert optimizer.param_groups[0]["lr"] == 0.01 * (root + 1)
    a_step(kind, model, optimizer)


def test_lbfgs_state_cannot_be_broadcast():
    with pytest.raises(ValueError, match=r"cannot broadcast torch\.optim\.LBFGS state"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS([torch.zeros(2, requires_grad=True)]), 0)


def test_objects_of_any_size_travel(rank, size):
    assert hvd.broadcast_object({"from": rank, "long": [rank] * 10_000}, root_rank=size - 1) == {"from": size - 1, "long": [size - 1] * 10_000}
    assert hvd.broadcast_object(None) is None
    assert hvd.allgather_object(["x"] * rank) == [["x"] * r for r in range(size)]
    assert torch.equal(hvd.allgather_object(torch.tensor([rank]))[size - 1], torch.tensor([size - 1]))


# --- the words of Horovod ---


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
