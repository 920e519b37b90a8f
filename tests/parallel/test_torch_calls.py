"""The order of calls that a script may choose: closures, clipping, accumulation, schedulers, several optimizers."""

import warnings

import pytest
import torch
from torch import nn
from torch_training import Branches, assert_equal_everywhere, assert_like, batches, build_model, distributed, flat, loss_of, train, train_alone

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


def mean_gradients(model, step, size):
    """Plain torch: the gradient on everybody's batch, leaving ``.grad`` alone."""
    return torch.autograd.grad(loss_of(model, batches(step, size).flatten(0, 1)), list(model.parameters()))


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
