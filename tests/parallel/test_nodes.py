"""Several nodes: ranks of one machine that are told to take themselves for several add up in memory and cross the rest once a node."""

import logging
import os

import numpy as np
import pytest
import torch

import hvdlite
import hvdlite.torch as hvd
from hvdlite.compression import Bucket, load, names, simulate

NODES = {1: ["1"], 2: ["1,1", "2"], 3: ["2,1", "1,2", "1,1,1"], 4: ["2,2", "3,1", "1,2,1"]}
SHAPES = [(120, 130), (90, 130), (130,), (64, 64)]


@pytest.fixture(scope="module", params=NODES[int(os.environ.get("HVDLITE_SIZE", "1"))])
def nodes(request):
    """The sizes of the nodes, in a world that was made anew; and back."""
    hvd.shutdown()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("HVDLITE_TRANSPORT", raising=False)
        patch.setenv("HVDLITE_RANKS_PER_NODE", request.param)
        hvd.init()
        yield [int(n) for n in request.param.split(",")]
        hvd.shutdown()
    hvd.init()


def gradients(rank, step=0):
    rng = np.random.default_rng(100 * step + rank)
    return [rng.standard_normal(shape).astype(np.float32) for shape in SHAPES]


def buckets_of(spec, name):
    parameters = [hvdlite.Parameter(str(i), shape, "float32") for i, shape in enumerate(SHAPES)]
    return hvdlite.GradientBuckets(hvdlite.world(), name, parameters, None if spec == "none" else load(spec))


def step(buckets, rank, number=0):
    for i, gradient in reversed(list(enumerate(gradients(rank, number)))):
        buckets.hand_over(str(i), gradient)
    buckets.finish()
    return [buckets.view(str(i)).copy() for i in range(len(SHAPES))]


def test_a_rank_knows_its_place(nodes, rank, size):
    node = next(i for i in range(len(nodes)) if rank < sum(nodes[: i + 1]))
    local = rank - sum(nodes[:node])
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (rank, size, local, nodes[node])
    assert hvd.cross_rank() == [n > local for n in nodes[:node]].count(True)
    assert hvd.is_homogeneous() == (len(set(nodes)) == 1)
    kind = type(hvdlite.world().transport).__name__
    expected = (
        "LocalTransport" if size == 1 else "MpiTransport" if set(nodes) == {1} else "SharedMemoryTransport" if len(nodes) == 1 else "HierarchicalTransport"
    )
    assert kind == expected


LENGTHS = [(op, count) for op in (hvd.Sum, hvd.Average, hvd.Min, hvd.Max) for count in (3, 4097)] + [(hvd.Sum, 5_000_000)]  # no staging buffer holds the last


@pytest.mark.parametrize(("op", "count"), LENGTHS)
def test_free_standing_tensors_of_any_length(nodes, rank, size, op, count):
    everyone = [np.random.default_rng(r).integers(-9, 9, count).astype(np.float32) for r in range(size)]
    found = hvd.allreduce(torch.from_numpy(everyone[rank]), op=op).numpy()
    expected = {hvd.Sum: sum(everyone), hvd.Average: sum(everyone) / size, hvd.Min: np.min(everyone, 0), hvd.Max: np.max(everyone, 0)}[op]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_plain_gradients_are_the_mean_and_equal_everywhere(nodes, rank, size):
    buckets = buckets_of("none", "plain")
    for number in range(3):  # the layout changes after the first
        found = step(buckets, rank, number)
        for i, array in enumerate(found):
            np.testing.assert_allclose(array, np.mean([gradients(r, number)[i] for r in range(size)], 0), rtol=2e-6, atol=1e-6)
        assert len(set(hvd.allgather_object([a.tobytes() for a in found].__repr__()))) == 1


@pytest.mark.parametrize("spec", names())
def test_every_compressor_gives_equal_bits_and_forgets_nothing(nodes, rank, size, spec):
    """With error feedback, what arrived over the steps and what the carriers still owe add up to what was given."""
    compressor = spec if spec in ("none", "fp16", "bf16") else f"{spec}:feedback=true"
    buckets = buckets_of(compressor, f"all {spec}")
    arrived = [np.zeros(shape) for shape in SHAPES]
    for number in range(4):
        found = step(buckets, rank, number)
        assert len(set(hvd.allgather_object(repr([a.tobytes() for a in found])))) == 1
        arrived = [a + f for a, f in zip(arrived, found, strict=True)]
    if "feedback" not in compressor:
        return
    mine = {name: q["residual"] for name, q in buckets.compressor.state_dict().items() if "residual" in q}
    everyone = hvd.allgather_object(mine)
    crossed = len(nodes) if len(nodes) > 1 and set(nodes) != {1} else size  # those whose mean it was
    for i, total in enumerate(arrived):
        given = sum(np.mean([gradients(r, n)[i] for r in range(size)], 0) for n in range(4))
        owed = sum((theirs[str(i)] for theirs in everyone if str(i) in theirs), np.zeros(SHAPES[i])) / crossed
        np.testing.assert_allclose(total + owed, given, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("spec", ["int8:feedback=false", "fp16", "topk:density=0.1,feedback=false"])
def test_what_is_compressed_is_the_sum_of_each_node(nodes, rank, size, spec):
    """To the last bit what the simulator gives, with one rank a node."""
    given = [np.random.default_rng(r).standard_normal((64, 64)).astype(np.float32) for r in range(size)]
    buckets = hvdlite.GradientBuckets(hvdlite.world(), f"simulated {spec}", [hvdlite.Parameter("w", (64, 64), "float32")], load(spec))
    buckets.hand_over("w", given[rank])
    buckets.finish()
    if len(nodes) == 1 or set(nodes) == {1}:
        sums = [g.reshape(-1) for g in given]  # every rank compresses for itself
    else:
        ends = np.cumsum(nodes)
        sums = [sum(given[end - n : end - 1], np.float32(0)) + given[end - 1] for n, end in zip(nodes, ends, strict=True)]
        sums = [(s * np.float32(len(nodes) / size)).reshape(-1) for s in sums]
    played = simulate([load(spec) for _ in sums], [Bucket.of(s, [("w", (64, 64))], r, len(sums)) for r, s in enumerate(sums)])
    assert buckets.view("w").tobytes() == played.means[0].tobytes()


def test_only_carriers_send_and_they_send_less(nodes, rank, size):
    if len(nodes) == 1 or set(nodes) == {1}:
        return
    buckets = buckets_of("topk:density=0.05", "bytes")
    step(buckets, rank)
    before = hvd.metrics()["wire_bytes"]
    step(buckets, rank, 1)
    sent = hvd.allgather_object(hvd.metrics()["wire_bytes"] - before)
    carries = hvd.allgather_object(hvd.local_rank() < min(nodes))
    dense = sum(4 * np.prod(s) for s in SHAPES if len(s) == 1) * 2 * (size - 1) / size  # small tensors go to everybody
    assert all(c or s <= dense + 1 for s, c in zip(sent, carries, strict=True))
    entries = sum(np.prod(s) for s in SHAPES if len(s) > 1) * 0.05
    assert sum(s for s in sent) <= size * dense + len(nodes) * (len(nodes) - 1) * 8 * (entries + 3) + 1


def test_resuming_is_as_if_never_stopped(nodes, rank):
    going, first = buckets_of("topk:density=0.05", "going"), buckets_of("topk:density=0.05", "first")
    for number in range(3):
        expected = step(going, rank, number)
        step(first, rank, number)
    second = buckets_of("topk:density=0.05", "second")
    second.lay_out_as(first.order)
    second.compressor.load_state_dict(first.compressor.state_dict())
    expected, found = step(going, rank, 3), step(second, rank, 3)
    assert [a.tobytes() for a in found] == [a.tobytes() for a in expected]


def test_sizes_that_do_not_add_up_are_refused(size, monkeypatch):
    hvd.shutdown()
    monkeypatch.setenv("HVDLITE_RANKS_PER_NODE", "7,7")
    try:
        if size > 1:
            with pytest.raises(hvdlite.SettingError, match=f"names 14 ranks, and the job has {size}"):
                hvd.init()
    finally:
        monkeypatch.undo()
        hvd.init()


def test_compressing_what_stays_on_one_machine_is_remarked_on_once(nodes, rank, size, caplog):
    hvdlite.world().remarked.clear()
    model = torch.nn.Linear(64, 64)
    logging.getLogger("hvdlite").propagate = True
    with caplog.at_level("INFO", "hvdlite"):
        for spec in ("fp16", "fp16", "none"):
            hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), compression=spec)
    remarks = [r.message for r in caplog.records if r.message.startswith("compression=")]
    assert len(remarks) == (rank == 0 and size > 1 and len(nodes) == 1)
    assert all(f"compression=fp16: all {size} ranks are on this machine" in r for r in remarks)
