"""hvdlite.torch.elastic: the sampler's laws, and what a state hands over, in one process; then a job that loses a rank."""

import pickle
import re
import subprocess
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import hvdlite  # noqa: E402
from hvdlite.torch import elastic  # noqa: E402
from hvdlite.torch.elastic import sampler as sampler_module  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _world():
    hvdlite.init()
    yield
    hvdlite.shutdown()


class Ranks:
    """Samplers of several ranks in this process."""

    def __init__(self, size, num_samples, **how):
        self.size, self.num_samples, self.how = size, num_samples, how
        self.samplers = [self._on(rank, lambda: elastic.ElasticSampler(range(num_samples), **how)) for rank in range(size)]

    def _on(self, rank, call):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sampler_module, "rank", lambda: rank)
            patch.setattr(sampler_module, "size", lambda: self.size)
            return call()

    def batches(self, batch_size, number):
        """The next batches of all ranks, recorded as processed."""
        found = []
        streams = [iter(s) for s in self.samplers]
        for i in range(number):
            for stream in streams:
                found += [index for _, index in zip(range(batch_size), stream, strict=False)]
            for each in self.samplers:
                each.record_batch(i, batch_size)
        return found

    def on_other_ranks(self, size):
        """The state goes to another number of ranks."""
        state = self.samplers[0].state_dict()
        assert all(s.state_dict() == state for s in self.samplers)
        others = Ranks(size, self.num_samples, **self.how)
        for rank, each in enumerate(others.samplers):
            others._on(rank, lambda each=each: each.load_state_dict(state))
        return others


SIZES = st.integers(1, 5)


@given(SIZES, st.integers(0, 40), st.booleans(), st.integers(0, 3))
def test_an_epoch_gives_every_index_and_all_ranks_as_many(size, num_samples, shuffle, epoch):
    ranks = Ranks(size, num_samples, shuffle=shuffle)
    for rank, each in enumerate(ranks.samplers):
        ranks._on(rank, lambda each=each: each.set_epoch(epoch))
    dealt = [list(s) for s in ranks.samplers]
    assert {len(d) for d in dealt} == {len(ranks.samplers[0])}
    everything = list(chain.from_iterable(dealt))
    assert set(everything) == set(range(num_samples))
    assert len(everything) - num_samples < size


@given(SIZES, SIZES, SIZES, st.integers(1, 60), st.integers(1, 4), st.integers(0, 4), st.integers(0, 4), st.booleans())
def test_after_resets_only_what_no_rank_has_processed_is_dealt(first, second, third, num_samples, batch_size, some, more, shuffle):
    ranks = Ranks(first, num_samples, shuffle=shuffle)
    processed = ranks.batches(batch_size, some)
    ranks = ranks.on_other_ranks(second)
    processed += ranks.batches(batch_size, more)
    ranks = ranks.on_other_ranks(third)
    rest = list(chain.from_iterable(ranks.samplers))
    assert set(processed) | set(rest) == set(range(num_samples))
    if rest:  # nothing was dealt twice to even out the ranks
        assert len(processed) == len(set(processed))
        assert set(processed).isdisjoint(rest)


@given(SIZES, st.integers(1, 40), st.integers(1, 4), st.integers(0, 5))
def test_a_resumed_epoch_equals_an_uninterrupted_one(size, num_samples, batch_size, done):
    whole = Ranks(size, num_samples)
    parts = Ranks(size, num_samples)
    begun = parts.batches(batch_size, done)
    total = whole.batches(batch_size, num_samples)
    resumed = parts.on_other_ranks(size).batches(batch_size, num_samples)
    assert begun == total[: len(begun)]
    assert set(begun + resumed) == set(total)
    if len(begun) <= num_samples // (size * batch_size) * size * batch_size and num_samples % size == 0:
        assert begun + resumed == total


def test_the_loader_gives_each_epoch_another_order():
    sampler = elastic.ElasticSampler(range(20))
    loader = torch.utils.data.DataLoader(range(20), batch_size=5, sampler=sampler)
    first = [int(i) for batch in loader for i in batch]
    sampler.set_epoch(1)
    second = [int(i) for batch in loader for i in batch]
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second


# --- TorchState ---------------------------------------------------------------------------------------------------------------------


def trained(seed, steps=3):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01 * (seed + 1))
    for _ in range(steps):
        step(model, optimizer)
    return model, optimizer


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(5, 3)).square().mean().backward()
    optimizer.step()


def content(state):
    """Everything that must survive, as comparable values."""
    moments = state.optimizer.state_dict()
    return (
        [(name, t.tolist()) for name, t in state.model.state_dict().items()],
        [(i, [(k, v.tolist()) for k, v in s.items()]) for i, s in moments["state"].items()],
        [group["lr"] for group in moments["param_groups"]],
        state.sampler.state_dict(),
        state.epoch,
    )


def state_of(seed):
    model, optimizer = trained(seed)
    return elastic.TorchState(model, optimizer, sampler=elastic.ElasticSampler(range(30)), epoch=seed)


def change(state):
    step(state.model, state.optimizer)
    state.sampler.record_batch(0, 4)
    state.epoch += 1


def test_everything_is_restored():
    state = state_of(0)
    change(state)
    state.commit()
    committed = content(state)
    for _ in range(2):
        change(state)
        assert content(state) != committed
        state.restore()
        assert content(state) == committed


def test_everything_goes_to_the_next_start_as_it_was_committed():
    state = state_of(0)
    change(state)
    state.commit()
    committed, carried = content(state), pickle.dumps(state.snapshot())
    change(state)
    other = state_of(1)
    other.load_snapshot(pickle.loads(carried))
    assert content(other) == committed
    change(other)
    other.restore()
    assert content(other) == committed


def test_another_object_under_the_same_name_is_handled_from_then_on():
    state = state_of(0)
    state.model, state.optimizer = trained(5)
    before = content(state)
    change(state)
    state.restore()
    assert content(state)[:3] == before[:3]


def test_users_may_add_handlers():
    class Counter:
        number = 0

    class CounterHandler(elastic.StateHandler):
        def save(self):
            self._saved = self.value.number

        def restore(self):
            self.value.number = self._saved

        def sync(self): ...

    registry = elastic.state.get_handler_registry()
    registry.append((Counter, CounterHandler))
    try:
        state = elastic.TorchState(counter=Counter())
        state.counter.number = 3
        state.commit()
        carried = pickle.dumps(state.snapshot())
        state.counter.number = 4
        state.restore()
        assert state.counter.number == 3
        other = elastic.TorchState(counter=Counter())
        other.load_snapshot(pickle.loads(carried))
        assert other.counter.number == 3
    finally:
        registry.pop()


JOB = """
import hashlib, os, signal, sys
import torch
import hvdlite.torch as hvd

torch.set_num_threads(1)
hvd.init()
STEPS, flag = 40, sys.argv[1]

def begin():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, hvd.DistributedOptimizer(optimizer, model.named_parameters())

def step(model, optimizer, number):
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1000 * number + hvd.rank()))
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()

def digest(model):
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()

model, optimizer = begin()
for number in range(STEPS):
    step(model, optimizer, number)
uninterrupted = digest(model)

@hvd.elastic.run
def train(state):
    print("START", state.step, flush=True)
    while state.step < STEPS:
        step(state.model, state.optimizer, state.step)
        state.step += 1
        if state.step == 13 and os.path.exists(flag):
            hvd.barrier()  # nobody looks for the file after it is gone
            if hvd.rank() == 0:
                os.remove(flag)
                os.kill(os.getpid(), signal.SIGKILL)
        if state.step % 5 == 0:
            state.commit()

state = hvd.elastic.TorchState(*begin(), step=0)
train(state)
print("EQUAL" if digest(state.model) == uninterrupted else "DIFFERENT", flush=True)
"""


def test_a_job_that_loses_rank_0_ends_with_the_weights_of_an_uninterrupted_one(tmp_path, any_mpi_python):
    script, flag = tmp_path / "train.py", tmp_path / "flag"
    script.write_text(JOB)
    flag.touch()
    command = [any_mpi_python, "-m", "hvdlite", "run", "-np", "2", "--min-np", "1", str(script), str(flag)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"\[0\] START (\d+)", done.stdout) == ["0", "10"]
    assert done.stdout.count("EQUAL") == 2
    assert not flag.exists()
