"""DistributedOptimizer in every situation a script may bring it into; where there is one, plain torch on everybody's batch is the judge."""

import gc
import logging
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

import hvdlite
import hvdlite.torch as hvd

IN_FLIGHT = (
    r"^optimizer\.zero_grad\(\) was called after loss\.backward\(\) but before optimizer\.step\(\) or optimizer\.synchronize\(\)\. "
    r"This is prohibited as it can cause a race condition\.$"
)
TOO_MANY = (
    r"^Gradients were computed more than backward_passes_per_step times before call to step\(\)\. "
    r"Increase backward_passes_per_step to accumulate gradients locally\.$"
)
NOT_SKIPPED = (
    r"optimizer\.step\(\) called without optimizer\.skip_synchronize\(\) context after optimizer\.synchronize\(\)\. "
    r"This can cause training slowdown\. You may want to consider using optimizer\.skip_synchronize\(\) context\."
)


def build_model(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 3)).to(dtype)


def batches(step, size, dtype=torch.float32):
    return torch.randn(size, 4, 6, generator=torch.Generator().manual_seed(step)).to(dtype)


def loss_of(model, x):
    return model(x).float().square().mean()


def distributed(model, kind=torch.optim.SGD, lr=0.05, names=True, options=None, **how):
    optimizer = kind(model.parameters(), lr=lr, **(options or {}))
    return hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters() if names else None, **how)


def train(model, optimizer, steps, rank, size):
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, batches(step, size)[rank]).backward()
        optimizer.step()


def train_alone(model, optimizer, steps, size):
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, batches(step, size).flatten(0, 1)).backward()
        optimizer.step()


def flat(model):
    return torch.cat([p.detach().reshape(-1).double() for p in model.parameters()])


def assert_equal_everywhere(model):
    assert all(torch.equal(flat(model), theirs) for theirs in hvd.allgather_object(flat(model))), "the ranks' parameters differ"


def assert_like(model, alone):
    torch.testing.assert_close(flat(model), flat(alone), atol=1e-5, rtol=1e-5)


def mean_gradients(model, step, size):
    """Plain torch: the gradient on everybody's batch, leaving ``.grad`` alone."""
    return torch.autograd.grad(loss_of(model, batches(step, size).flatten(0, 1)), list(model.parameters()))


def residuals(optimizer):
    remembered = optimizer.state_dict().get("hvdlite", {"state": {}})["state"]
    return {name: quantities["residual"] for name, quantities in sorted(remembered.items()) if "residual" in quantities}


def settings(monkeypatch, **values):
    monkeypatch.setattr(hvdlite.world(), "settings", replace(hvdlite.world().settings, **values))


# --- every optimizer ---


def optimizers():
    kinds = [k for k in vars(torch.optim).values() if isinstance(k, type) and issubclass(k, torch.optim.Optimizer)]
    return {k.__name__: k for k in kinds if k not in (torch.optim.Optimizer, torch.optim.LBFGS, torch.optim.SparseAdam)}


@pytest.mark.parametrize("kind", optimizers().values(), ids=optimizers())
def test_every_optimizer_of_torch_steps_as_alone(kind, rank, size):
    def build():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8, bias=False, dtype=torch.float64), nn.Tanh(), nn.Linear(8, 3, bias=False, dtype=torch.float64))

    def run(model, optimizer, whole):
        for step in range(5):
            x = batches(step, size).double()
            optimizer.zero_grad()
            model(x.flatten(0, 1) if whole else x[rank]).square().mean().backward()
            optimizer.step()
        return flat(model)

    model, alone = build(), build()
    optimizer = distributed(model, kind, lr=0.01)
    assert isinstance(optimizer, kind)
    assert type(optimizer).__name__ == kind.__name__
    start = flat(model)
    found, expected = run(model, optimizer, whole=False), run(alone, kind(alone.parameters(), lr=0.01), whole=True)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    assert not torch.equal(found, start)
    assert_equal_everywhere(model)


def test_lbfgs_is_refused():
    with pytest.raises(ValueError, match="LBFGS evaluates its closure many times a step"):
        hvd.DistributedOptimizer(torch.optim.LBFGS(build_model().parameters()))


def test_an_optimizer_stays_the_same_object_with_its_state(rank, size):
    model = build_model()
    bare = torch.optim.Adam(model.parameters(), lr=0.01)
    train_alone(model, bare, range(3), size)
    kept = {p: bare.state[p]["exp_avg"].clone() for p in model.parameters()}
    optimizer = hvd.DistributedOptimizer(bare, named_parameters=model.named_parameters())
    assert optimizer is bare
    assert all(torch.equal(optimizer.state[p]["exp_avg"], m) for p, m in kept.items())
    alone = build_model()
    judge = torch.optim.Adam(alone.parameters(), lr=0.01)
    train_alone(alone, judge, range(6), size)
    train(model, optimizer, range(3, 6), rank, size)
    assert_like(model, alone)


def test_an_optimizer_wrapped_twice_exchanges_once(rank, size):
    model, alone = build_model(), build_model()
    optimizer = distributed(model, op=hvd.Sum, lr=0.01 / size)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=hvd.Sum)
    train(model, optimizer, range(3), rank, size)
    train_alone(alone, torch.optim.SGD(alone.parameters(), lr=0.01), range(3), size)
    assert_like(model, alone)


def test_hooks_of_an_optimizer_that_is_gone_do_nothing(rank, size):
    model, alone = build_model(), build_model()
    distributed(model, lr=1.0)
    gc.collect()
    loss_of(model, batches(0, size)[rank]).backward()
    assert not any(hvdlite.world().engine._in_flight)
    model.zero_grad()
    train(model, distributed(model), range(2), rank, size)
    train_alone(alone, torch.optim.SGD(alone.parameters(), lr=0.05), range(2), size)
    assert_like(model, alone)


def test_parameters_without_names(rank, size):
    model, alone = build_model(), build_model()
    optimizer = distributed(model, names=False, compression="topk:density=0.1")
    train(model, optimizer, range(3), rank, size)
    assert_equal_everywhere(model)
    assert set(residuals(optimizer)) == ({"group.0.2"} if size > 1 else set())
    plain = build_model()
    train(plain, distributed(plain, names=False), range(3), rank, size)
    train_alone(alone, torch.optim.SGD(alone.parameters(), lr=0.05), range(3), size)
    assert_like(plain, alone)


def test_names_that_torch_knows_are_used(rank, size):
    model = build_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.named_parameters(), lr=0.05), compression="topk:density=0.1")
    train(model, optimizer, range(2), rank, size)
    assert set(residuals(optimizer)) == ({"2.weight"} if size > 1 else set())


def test_ten_thousand_tiny_parameters_train(rank, size):
    parameters = [nn.Parameter(torch.full((2,), 1.0 + i % 3)) for i in range(10_000)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.5))
    for _ in range(2):
        optimizer.zero_grad()
        (torch.cat([p for i, p in enumerate(parameters) if rank == 0 or i % 2]).sum() * (rank + 1)).backward()  # half of them unused, but on rank 0
        optimizer.step()
    mean = {True: sum(range(1, size + 1)) / size, False: 1 / size}
    assert all(torch.allclose(p, torch.full((2,), 1.0 + i % 3 - mean[bool(i % 2)])) for i, p in enumerate(parameters))


# --- which parameters have a gradient ---


class Branches(nn.Module):
    """Two branches, of which a batch may use either; a shared layer; and one nobody uses."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.shared, self.left, self.right, self.idle = nn.Linear(6, 6), nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(40, 40)

    def forward(self, x, left, right):
        hidden = self.shared(torch.tanh(self.shared(x)))
        return (self.left(hidden) if left else 0) + (self.right(hidden) if right else 0)


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_unused_parameters(kind, to_none, rank, size):
    """The left branch is used on rank 0 only, the right one everywhere in even steps and nowhere in odd ones, idle never."""
    model, alone = Branches(), Branches()
    options = {"weight_decay": 0.1}
    optimizer, judge = distributed(model, kind, options=options), kind(alone.parameters(), lr=0.05, **options)
    for step in range(6):
        x = batches(step, size)
        optimizer.zero_grad(set_to_none=to_none)
        model(x[rank], rank == 0, step % 2 == 0).square().mean().backward() if rank == 0 or step % 2 == 0 else None
        optimizer.step()
        judge.zero_grad(set_to_none=to_none)
        for r in range(size):
            if r == 0 or step % 2 == 0:
                (alone(x[r], r == 0, step % 2 == 0).square().mean() / size).backward()
        judge.step()
        for (name, p), q in zip(model.named_parameters(), alone.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None), name
    assert_like(model, alone)
    assert all(p.grad is None for p in model.idle.parameters())
    assert_equal_everywhere(model)


def test_a_rank_without_any_gradient_takes_part_in_every_step(rank, size):
    """Also when gradients are cleared behind the optimizer's back."""
    model, alone = build_model(), build_model()
    optimizer, judge = distributed(model), torch.optim.SGD(alone.parameters(), lr=0.05)
    for step in range(3):
        x = batches(step, 1)[0]
        if rank == 0:
            loss_of(model, x).backward()
        optimizer.step()
        model.zero_grad()
        judge.zero_grad()
        (loss_of(alone, x) / size).backward()
        judge.step()
    assert_like(model, alone)


def test_what_is_owed_to_an_unused_parameter_is_delivered_not_lost(rank, size):
    """Used once, then never again: error feedback goes on sending the rest, until all of the gradient has arrived."""
    torch.manual_seed(0)
    layers = nn.ModuleDict({"a": nn.Linear(40, 40, bias=False), "b": nn.Linear(40, 40, bias=False)})
    start = layers["a"].weight.detach().clone()
    optimizer = distributed(layers, lr=1.0, compression="topk:density=0.2")
    x = torch.randn(size, 4, 40, generator=torch.Generator().manual_seed(1))
    for step in range(12):
        optimizer.zero_grad()
        (layers["a"](x[rank]).sum() if step == 0 else layers["b"](x[rank]).sum() * 1e-6).backward()
        optimizer.step()
    owed = hvd.allreduce(residuals(optimizer)["a.weight"]) if size > 1 else 0.0
    true = x.sum(1).mean(0).expand(40, 40)
    torch.testing.assert_close(start - layers["a"].weight.detach() + owed, true, atol=1e-5, rtol=1e-5)


def test_frozen_parameters_are_left_alone_and_may_be_unfrozen_at_any_moment(rank, size):
    """Unfrozen before zero_grad(), or between zero_grad() and backward(): the step is that of one process either way, for a sum too."""
    model, alone = build_model(), build_model()
    for m in (model, alone):
        m[0].requires_grad_(False)
        m[2].requires_grad_(False)
    frozen = model[0].weight.detach().clone()
    optimizer, judge = distributed(model, op=hvd.Sum, lr=0.05 / size), torch.optim.SGD(alone.parameters(), lr=0.05)
    for step in range(9):
        if step == 3:
            assert torch.equal(model[0].weight, frozen)
            model[0].requires_grad_(True)
            alone[0].requires_grad_(True)
        optimizer.zero_grad()
        judge.zero_grad()
        if step == 6:
            model[2].requires_grad_(True)
            alone[2].requires_grad_(True)
        loss_of(model, batches(step, size)[rank]).backward()
        optimizer.step()
        loss_of(alone, batches(step, size).flatten(0, 1)).backward()
        judge.step()
        assert_like(model, alone)
    assert not torch.equal(model[0].weight, frozen)
    assert_equal_everywhere(model)


def test_a_parameter_frozen_later_stays_as_it_is(rank, size):
    model = build_model()
    optimizer = distributed(model)
    train(model, optimizer, range(2), rank, size)
    optimizer.zero_grad()
    model[0].requires_grad_(False)
    kept = model[0].weight.detach().clone()
    train(model, optimizer, range(2, 4), rank, size)
    assert torch.equal(model[0].weight, kept)
    assert_equal_everywhere(model)


@pytest.mark.parametrize("compression", ["none", "topk:density=0.1"])
def test_parameters_added_later(compression, rank, size):
    model, alone = build_model(), build_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model[2].parameters(), lr=0.05), model.named_parameters(), compression=compression)
    judge = torch.optim.SGD(alone[2].parameters(), lr=0.05)
    train(model, optimizer, range(3), rank, size)
    train_alone(alone, judge, range(3), size)
    model.zero_grad()  # what nobody trains has gathered gradients, of this rank alone
    alone.zero_grad()
    owed = residuals(optimizer)
    optimizer.add_param_group({"params": list(model[0].parameters()) + list(model[4].parameters()), "lr": 0.02})
    judge.add_param_group({"params": list(alone[0].parameters()) + list(alone[4].parameters()), "lr": 0.02})
    kept = residuals(optimizer)
    assert kept.keys() == owed.keys()
    assert all(torch.equal(kept[name], r) for name, r in owed.items())
    assert bool(owed) == (size > 1 and compression != "none")
    train(model, optimizer, range(3, 6), rank, size)
    train_alone(alone, judge, range(3, 6), size)
    if compression == "none":
        assert_like(model, alone)
    assert_equal_everywhere(model)


def test_parameters_cannot_be_added_while_gradients_are_under_way(rank, size):
    if size == 1:
        return
    model, more = build_model(), nn.Linear(2, 2)
    optimizer = distributed(model)
    loss_of(model, batches(0, size)[rank]).backward()
    with pytest.raises(AssertionError, match="add them between steps"):
        optimizer._gradients.in_flight and optimizer._watch()
    optimizer.step()
    optimizer.add_param_group({"params": list(more.parameters())})


# --- the order of calls ---


def test_clearing_gradients_under_way_is_prohibited(rank, size):
    model = build_model()
    optimizer = distributed(model)
    loss_of(model, batches(0, size)[rank]).backward()
    if size == 1:
        optimizer.zero_grad()
        return
    for to_none in (True, False):
        with pytest.raises(AssertionError, match=IN_FLIGHT):
            optimizer.zero_grad(set_to_none=to_none)
    optimizer.step()
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())
    loss_of(model, batches(1, size)[rank]).backward()
    optimizer.synchronize()
    optimizer.zero_grad(set_to_none=False)
    assert all(not p.grad.any() for p in model.parameters())


def test_more_backward_passes_than_announced(rank, size):
    model = build_model()
    optimizer = distributed(model, backward_passes_per_step=2)
    for _ in range(2):
        loss_of(model, batches(0, size)[rank]).backward()
    if size > 1:
        with pytest.raises(AssertionError, match=TOO_MANY):
            loss_of(model, batches(0, size)[rank]).backward()
    del optimizer
    with pytest.raises(ValueError, match=r"^backward_passes_per_step must be > 0$"):
        distributed(model, backward_passes_per_step=0)


def test_a_step_before_all_passes_and_a_changed_number_of_passes(rank, size):
    model, alone = build_model(), build_model()
    optimizer, judge = distributed(model, backward_passes_per_step=3), torch.optim.SGD(alone.parameters(), lr=0.05)
    step = 0
    for announced, passes in ((3, 3), (3, 1), (3, 2), (2, 2), (2, 1), (1, 1)):
        optimizer.set_backward_passes_per_step(announced)
        assert optimizer.backward_passes_per_step == announced
        optimizer.zero_grad()
        judge.zero_grad()
        for _ in range(passes):
            step += 1
            loss_of(model, batches(step, size)[rank]).backward()
            loss_of(alone, batches(step, size).flatten(0, 1)).backward()
        optimizer.step()
        judge.step()
        assert_like(model, alone)


def test_gradients_cleared_between_passes_begin_the_step_anew(rank, size):
    model, alone = build_model(), build_model()
    optimizer = distributed(model, backward_passes_per_step=2)
    loss_of(model, batches(7, size)[rank]).backward()
    optimizer.zero_grad()
    for _ in range(2):
        (loss_of(model, batches(0, size)[rank]) / 2).backward()
    optimizer.step()
    train_alone(alone, torch.optim.SGD(alone.parameters(), lr=0.05), range(1), size)
    assert_like(model, alone)


def test_steps_without_backward_or_without_clearing_are_those_of_one_process(rank, size):
    model, alone = build_model(), build_model()
    optimizer, judge = distributed(model), torch.optim.SGD(alone.parameters(), lr=0.05)
    optimizer.step()
    judge.step()
    assert torch.equal(flat(model), flat(alone))
    for step in range(3):
        loss_of(model, batches(step, size)[rank]).backward()
        loss_of(alone, batches(step, size).flatten(0, 1)).backward()
        for _ in range(2):
            optimizer.step()
            judge.step()
    assert_like(model, alone)


def test_closures(rank, size):
    model, alone = build_model(), build_model()
    optimizer, judge = distributed(model), torch.optim.SGD(alone.parameters(), lr=0.05)
    for step in range(3):

        def closure(m, o, x):
            o.zero_grad()
            loss = loss_of(m, x)
            loss.backward()
            return loss

        x = batches(step, size)
        mine = optimizer.step(lambda x=x: closure(model, optimizer, x[rank]))
        whole = judge.step(lambda x=x: closure(alone, judge, x.flatten(0, 1)))
        torch.testing.assert_close(hvd.allreduce(mine.detach()), whole.detach())
    assert_like(model, alone)
    assert optimizer.step() is None


def test_clipping_by_hand(rank, size):
    model, alone = build_model(), build_model()
    optimizer, judge = distributed(model), torch.optim.SGD(alone.parameters(), lr=0.05)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, batches(step, size)[rank]).backward()
        optimizer.synchronize()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        with warnings.catch_warnings(), optimizer.skip_synchronize():
            warnings.simplefilter("error")
            optimizer.step()
        judge.zero_grad()
        loss_of(alone, batches(step, size).flatten(0, 1)).backward()
        torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(alone.parameters(), 0.01))
        judge.step()
    assert_like(model, alone)
    assert_equal_everywhere(model)


@pytest.mark.parametrize("how", ["in place", "replaced"])
def test_clipping_before_synchronize_is_answered_with_the_remedy(how, rank, size):
    model = build_model()
    optimizer = distributed(model)
    loss_of(model, batches(0, size)[rank]).backward()
    if how == "in place":
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    else:
        model[0].weight.grad = model[0].weight.grad * 2
    if size == 1:
        optimizer.step()
        return
    before = flat(model)
    with pytest.raises(hvdlite.SettingError, match=r"call optimizer\.synchronize\(\) first, then clip"):
        optimizer.step()
    assert torch.equal(flat(model), before)


def test_synchronizing_twice_changes_nothing_and_step_warns(rank, size):
    model = build_model()
    optimizer = distributed(model, op=hvd.Sum)
    loss_of(model, batches(0, size)[rank]).backward()
    optimizer.synchronize()
    once = [p.grad.clone() for p in model.parameters()]
    for g, exact in zip(once, mean_gradients(model, 0, size), strict=True):
        torch.testing.assert_close(g, exact * size, atol=1e-5, rtol=1e-5)
    optimizer.synchronize()
    before = flat(model)
    with pytest.warns(UserWarning, match=NOT_SKIPPED):
        optimizer.step()
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), once, strict=True))
    torch.testing.assert_close(flat(model), before - 0.05 * torch.cat([g.reshape(-1).double() for g in once]))


def test_schedulers_before_and_after_wrapping(rank, size):
    for wrap_first in (True, False):
        model = build_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        if wrap_first:
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        if not wrap_first:
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        second = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)
        rates = []
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for step in range(4):
                train(model, optimizer, [step], rank, size)
                rates.append(optimizer.param_groups[0]["lr"])
                scheduler.step()
        assert rates == [1.0, 1.0, 0.5, 0.5]
        del second
    assert_equal_everywhere(model)


def test_a_scheduler_from_before_wrapping_does_not_hide_the_exchange(rank, size):
    """With a parameter that this rank does not use, so that nothing but step() knows that the gradient is complete."""
    model = Branches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    for step in range(3):
        optimizer.zero_grad()
        model(batches(step, size)[rank], True, False).square().mean().backward()
        optimizer.step()
        scheduler.step()
    assert_equal_everywhere(model)


def test_a_scheduler_that_steps_first_is_warned_about_as_in_torch():
    optimizer = distributed(build_model())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    with pytest.warns(UserWarning, match="before `optimizer"):
        scheduler.step()


def test_step_hooks_run_once_and_see_the_mean(rank, size):
    model = build_model()
    optimizer = distributed(model)
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append([p.grad.clone() for p in model.parameters()]))
    exact = mean_gradients(model, 0, size)
    train(model, optimizer, [0], rank, size)
    assert len(seen) == 1
    for g, e in zip(seen[0], exact, strict=True):
        torch.testing.assert_close(g, e, atol=1e-5, rtol=1e-5)


def test_two_optimizers_of_a_gan(rank, size):
    """Both take the same names and the same compressor object; each has its own memory."""

    def run(generator, critic, of_generator, of_critic, batch):
        for step in range(4):
            x = batch(step)
            of_critic.zero_grad()
            (critic(x).mean() - critic(generator(x).detach()).mean()).backward()
            of_critic.step()
            of_generator.zero_grad()
            of_critic.zero_grad()
            critic(generator(x)).mean().backward()
            of_generator.step()
            # the critic's gradients of the generator's loss are thrown away
            if hasattr(of_critic, "synchronize"):
                of_critic.synchronize()
            of_critic.zero_grad()

    def build():
        torch.manual_seed(0)
        return nn.Linear(6, 6), nn.Linear(6, 1)

    pair, alone = build(), build()
    run(*pair, *(distributed(m) for m in pair), lambda step: batches(step, size)[rank])
    run(*alone, *(torch.optim.SGD(m.parameters(), lr=0.05) for m in alone), lambda step: batches(step, size).flatten(0, 1))
    for mine, theirs in zip(pair, alone, strict=True):
        assert_like(mine, theirs)


def test_one_compressor_object_for_two_optimizers_is_two_memories(rank, size):
    shared = hvd.Compression.topk(density=0.1)
    results = []
    for compressors in ((shared, shared), ("topk:density=0.1", "topk:density=0.1")):
        models = build_model(), build_model()
        made = [distributed(m, compression=c) for m, c in zip(models, compressors, strict=True)]
        for step in range(3):
            for i, (m, o) in enumerate(zip(models, made, strict=True)):
                train(m, o, [step + 10 * i], rank, size)
        results.append([flat(m) for m in models])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_the_gradient_of_a_gradient(rank, size):
    model, alone = build_model(), build_model()
    optimizer, judge = distributed(model), torch.optim.SGD(alone.parameters(), lr=0.05)

    def penalty(m, x):
        x = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(m(x).sum(), x, create_graph=True)
        return g.square().mean()

    for step in range(2):
        x = batches(step, size)
        optimizer.zero_grad()
        penalty(model, x[rank]).backward()
        optimizer.step()
        judge.zero_grad()
        penalty(alone, x.flatten(0, 1)).backward()
        judge.step()
    assert_like(model, alone)


# --- kinds of tensors ---


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("compression", ["none", "fp16", "topk:density=0.1", "powersgd:rank=2"])
def test_models_of_any_precision(dtype, compression, rank, size):
    model = build_model(dtype)
    optimizer = distributed(model, compression=compression)
    for step in range(3):
        optimizer.zero_grad()
        loss = model(batches(step, size, dtype)[rank]).double().square().mean()
        loss.backward()
        optimizer.synchronize()
        if compression == "none":
            alone = build_model(dtype)
            alone.load_state_dict(model.state_dict())
            x = batches(step, size, dtype).flatten(0, 1)
            expected = torch.autograd.grad(alone(x).double().square().mean(), list(alone.parameters()))
            tolerance = {torch.float64: 1e-12, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
            for p, g in zip(model.parameters(), expected, strict=True):
                assert p.grad.dtype == dtype
                torch.testing.assert_close(p.grad, g, atol=tolerance, rtol=4 * tolerance)
        with optimizer.skip_synchronize():
            optimizer.step()
    assert_equal_everywhere(model)
    assert flat(model).isfinite().all()


def test_mixed_precisions_in_one_model(rank, size):
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6, dtype=torch.bfloat16), nn.Linear(6, 6, dtype=torch.float64)])
    optimizer = distributed(model)
    for step in range(3):
        x = batches(step, size)[rank]
        optimizer.zero_grad()
        for layer in model:
            x = layer(x.to(layer.weight.dtype))
        x.square().mean().backward()
        optimizer.step()
    assert_equal_everywhere(model)


@pytest.mark.parametrize("form", ["channels last", "transposed", "expanded gradient"])
def test_parameters_and_gradients_of_any_layout(form, rank, size):
    def build():
        torch.manual_seed(0)
        if form == "channels last":
            return nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        if form == "transposed":
            layer = nn.Linear(6, 4)
            layer.weight = nn.Parameter(torch.randn(6, 4).t())
            return layer
        return nn.Linear(6, 4)

    def loss(model, x):
        if form == "channels last":
            return model(x.repeat_interleave(18, -1).reshape(-1, 3, 6, 6)).square().mean()
        return model.weight.sum() * x.mean() if form == "expanded gradient" else loss_of(model, x)

    model, alone = build(), build()
    strides = [p.stride() for p in model.parameters()]
    optimizer, judge = distributed(model, options={"momentum": 0.9}), torch.optim.SGD(alone.parameters(), lr=0.05, momentum=0.9)
    for step in range(3):
        x = batches(step, size)
        optimizer.zero_grad()
        loss(model, x[rank]).backward()
        optimizer.step()
        judge.zero_grad()
        loss(alone, x.flatten(0, 1)).backward()
        judge.step()
    assert_like(model, alone)
    assert [p.stride() for p in model.parameters()] == strides


def test_sparse_gradients_are_refused_or_made_dense(rank, size):
    def build():
        torch.manual_seed(0)
        return nn.Embedding(10, 3, sparse=True)

    rows = [torch.tensor([r, 9]) for r in range(size)]
    if size > 1:
        model = build()
        distributed_ = distributed(model)
        with pytest.raises(hvdlite.SettingError, match=r"the gradient of 'weight' is sparse .*sparse_as_dense=True"):
            model(rows[rank]).sum().backward()
        del distributed_
    model, alone = build(), build()
    optimizer, judge = distributed(model, sparse_as_dense=True), torch.optim.SGD(alone.parameters(), lr=0.05)
    for to_none in (True, False, False):
        optimizer.zero_grad(set_to_none=to_none)
        model(rows[rank]).sum().backward()
        optimizer.step()
        judge.zero_grad()
        (sum(alone(r).sum() for r in rows) / size).backward()
        judge.step()
    assert_like(model, alone)


# --- mixed precision ---


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("compression", ["none", "topk:density=0.1"])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_scaler_step_just_works(dtype, compression, kind, rank, size):
    model = build_model()
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
    optimizer = distributed(model, kind, lr=0.01, compression=compression, grad_scaler=scaler)
    alone = build_model()
    judge = kind(alone.parameters(), lr=0.01)
    for step in range(6):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = loss_of(model, batches(step, size)[rank])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        judge.zero_grad()
        with torch.autocast("cpu", dtype):
            loss_of(alone, batches(step, size).flatten(0, 1)).backward()
        judge.step()
    assert scaler.get_scale() == 2048.0
    assert_equal_everywhere(model)
    if compression == "none" and kind is torch.optim.SGD:
        torch.testing.assert_close(flat(model), flat(alone), atol=2e-3, rtol=2e-2)
    assert not torch.equal(flat(model), flat(build_model()))


@pytest.mark.parametrize("compression", ["none", "fp16", "int8", "topk:density=0.1", "powersgd:rank=2"])
@pytest.mark.parametrize("poison", [float("inf"), float("nan")], ids=str)
def test_infinity_on_one_rank_skips_the_step_on_all(poison, compression, rank, size):
    model = build_model()
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    optimizer = distributed(model, compression=compression, grad_scaler=scaler)
    for step in range(5):
        before, owed = flat(model), residuals(optimizer)
        optimizer.zero_grad()
        loss = loss_of(model, batches(step, size)[rank])
        if step == 3 and rank == size - 1:
            loss = loss * poison
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step == 3:
            assert torch.equal(flat(model), before)
            assert owed.keys() == residuals(optimizer).keys()
            assert all(torch.equal(r, owed[name]) for name, r in residuals(optimizer).items())
        else:
            assert not torch.equal(flat(model), before)
        assert scaler.get_scale() == (64.0 if step < 3 else 32.0)
    assert flat(model).isfinite().all()
    assert_equal_everywhere(model)


def test_residuals_follow_the_loss_scale(rank, size):
    """Powers of two scale exactly: a run with a changing scale ends with the bits of a run without any."""
    ends = []
    for scales in ([1.0] * 6, [1.0, 1.0, 1024.0, 1024.0, 0.25, 1.0]):
        model = build_model()
        scaler = torch.amp.GradScaler("cpu", init_scale=1.0, growth_interval=10_000)
        optimizer = distributed(model, compression="topk:density=0.1", grad_scaler=scaler)
        for step, scale in enumerate(scales):
            scaler.update(scale) if step else None
            optimizer.zero_grad()
            scaler.scale(loss_of(model, batches(step, size)[rank])).backward()
            scaler.step(optimizer)
            scaler.update()
        ends.append(flat(model))
    assert torch.equal(*ends)


def test_unscale_then_clip(rank, size):
    model, alone = build_model(), build_model()
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    optimizer, judge = distributed(model), torch.optim.SGD(alone.parameters(), lr=0.05)
    for step in range(3):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, batches(step, size)[rank])).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        scaler.step(optimizer)
        scaler.update()
        judge.zero_grad()
        loss_of(alone, batches(step, size).flatten(0, 1)).backward()
        torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(alone.parameters(), 0.01))
        judge.step()
    assert_like(model, alone)


# --- what ranks must have in common ---


def test_different_first_weights_are_named(monkeypatch, caplog, rank, size):
    def a_step(check):
        settings(monkeypatch, check_parameters=check)
        model = build_model()
        with torch.no_grad():
            model[2].weight += rank
            model[4].bias += rank
        optimizer = distributed(model)
        loss_of(model, batches(0, size)[rank]).backward()
        optimizer.step()

    if size == 1:
        a_step("error")
        return
    with pytest.raises(hvdlite.SettingError, match=r"2 of 6 parameters differ, first '2\.weight'; .*call hvd\.broadcast_parameters"):
        a_step("error")
    monkeypatch.setattr(logging.getLogger("hvdlite"), "propagate", True)
    with caplog.at_level("WARNING", "hvdlite"):
        a_step("off")
        assert "start training from different weights" not in caplog.text
        a_step("warn")
        assert ("start training from different weights" in caplog.text) == (rank == 0)


DIFFERENT = {
    "shape": (lambda rank: nn.Linear(6, 3 + (rank > 0)), r"'weight' has shape \(3, 6\) on rank 0 but \(4, 6\) on rank 1"),
    "dtype": (lambda rank: nn.Linear(6, 3, dtype=torch.float64 if rank else torch.float32), "'weight' has dtype float32 on rank 0 but float64 on rank 1"),
    "more": (lambda rank: nn.Linear(6, 3, bias=rank > 0), "rank 0 trains 'nothing' where rank 1 trains 'bias'"),
    "names": (lambda rank: nn.ModuleDict({f"layer{rank > 0}": nn.Linear(6, 3)}), r"rank 0 trains 'layerFalse\.weight' where rank 1 trains 'layerTrue\.weight'"),
    "frozen": (lambda rank: nn.Linear(6, 3).requires_grad_(True) if not rank else _bias_frozen(), "rank 0 trains 'bias' where rank 1 trains 'nothing'"),
}


def _bias_frozen():
    layer = nn.Linear(6, 3)
    layer.bias.requires_grad_(False)
    return layer


@pytest.mark.parametrize(("build", "words"), DIFFERENT.values(), ids=DIFFERENT)
def test_models_that_differ_are_named_on_every_rank_and_the_session_goes_on(build, words, rank, size):
    if size == 1:
        return
    model = build(rank)
    optimizer = distributed(model)
    with pytest.raises(hvdlite.MismatchError, match=words):
        sum(p.sum() for p in model.parameters() if p.requires_grad).backward()
    del optimizer
    model, alone = build_model(), build_model()  # their gradients lie elsewhere on a rank that has allocated more
    train(model, distributed(model), range(3), rank, size)
    train_alone(alone, torch.optim.SGD(alone.parameters(), lr=0.05), range(3), size)
    assert_like(model, alone)


def test_compressors_that_differ_are_named_on_every_rank(rank, size):
    if size == 1:
        return
    model = build_model()
    optimizer = distributed(model, compression=f"topk:density=0.{1 + (rank > 0)}")
    loss_of(model, batches(0, size)[rank]).backward()
    with pytest.raises(hvdlite.MismatchError, match=r"compression 'topk:density=0\.1' on rank 0 but 'topk:density=0\.2' on rank 1"):
        optimizer.step()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == size


def test_the_environment_chooses_the_compressor(monkeypatch, caplog, rank, size):
    settings(monkeypatch, compression="topk:density=0.2")
    monkeypatch.setattr(logging.getLogger("hvdlite"), "propagate", True)
    with caplog.at_level("INFO", "hvdlite"):
        model = build_model()
        optimizer = distributed(model, compression="fp16")
    assert "HVDLITE_COMPRESSION=topk:density=0.2 replaces the script's compression fp16" in caplog.text
    train(model, optimizer, range(2), rank, size)
    settings(monkeypatch, compression="")
    judge = build_model()
    train(judge, distributed(judge, compression="topk:density=0.2"), range(2), rank, size)
    assert torch.equal(flat(model), flat(judge))


def test_flushing_when_layers_become_ready_in_another_order_on_each_rank(monkeypatch, rank, size):
    settings(monkeypatch, bucket_bytes=1)
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(40, 40) for _ in range(4)])
    optimizer = distributed(model, compression="topk:density=0.1")
    order = list(range(4)) if rank == 0 else list(reversed(range(4)))
    for step in range(6):
        if step == 3:
            optimizer.flush()
        optimizer.zero_grad()
        for i in order:
            model[i](torch.ones(1, 40) * (rank + 1)).square().mean().backward()
        optimizer.step()
    assert_equal_everywhere(model)


def test_flushing_on_one_rank_alone_is_refused(rank, size):
    if size == 1:
        return
    model = build_model()
    optimizer = distributed(model, compression="topk:density=0.1")
    train(model, optimizer, range(2), rank, size)
    if rank == 0:
        optimizer.flush()
    with pytest.raises(hvdlite.MismatchError, match=r"'topk:density=0\.1 \(flushing\)' on rank 0 but 'topk:density=0\.1' on rank 1"):
        train(model, optimizer, [2], rank, size)


class Tenth:
    """A compressor written for Horovod, with an error no other has: it drops all but one decimal."""

    @staticmethod
    def compress(tensor):
        return (tensor * 10).round(), tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        return (tensor / 10).to(ctx)


class Halves:
    """A compressor written for Horovod that sends half precision."""

    @staticmethod
    def compress(tensor):
        return tensor.half(), tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        return tensor.to(ctx)


@pytest.mark.parametrize("compression", [Tenth, Tenth()], ids=["class", "object"])
def test_a_users_horovod_compressor(compression, rank, size):
    model = build_model()
    optimizer = distributed(model, lr=1.0, compression=compression)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    if size == 1:
        return
    (sum(p.sum() for p in model.parameters()) * (0.1 * rank + 0.26)).backward()
    optimizer.step()
    mean = sum(round((0.1 * r + 0.26) * 10) for r in range(size)) / size / 10
    assert all(torch.allclose(p, torch.full_like(p, -mean)) for p in model.parameters())


def test_a_users_half_precision_compressor(rank, size):
    model = build_model()
    train(model, distributed(model, compression=Halves), range(3), rank, size)
    alone = build_model()
    train_alone(alone, torch.optim.SGD(alone.parameters(), lr=0.05), range(3), size)
    torch.testing.assert_close(flat(model), flat(alone), atol=1e-3, rtol=1e-2)
    assert_equal_everywhere(model)
