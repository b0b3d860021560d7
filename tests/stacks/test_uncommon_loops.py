"""Several losses, several optimizers, models used twice, generators: they work, or are refused."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from noisewise.errors import UnsupportedModelError
from noisewise.gradients import Clipped, bounded_sum
from noisewise.training import Plan, SeveralOptimizers, StepError, make_private

EXAMPLES = Path(__file__).parents[2] / "examples"


def plan(**changes):
    values = dict(
        gradients=Clipped(1.0), noise_multiplier=1.0, steps=4, batch_size=20, delta=1e-5, seed=3
    )
    return Plan(**{**values, **changes})


def clipped_one_by_one(model, loss, records):
    """The sum of every record's own clipped gradient, by plain torch."""
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for x, y in records:
        value = loss(model(x), y)
        assert value.shape == (1,)
        found = torch.autograd.grad(value[0], list(model.parameters()), allow_unused=True)
        found = [torch.zeros(()) if g is None else g for g in found]
        norm = torch.sqrt(sum((g**2).sum() for g in found))
        for name, gradient in zip(total, found, strict=True):
            total[name] = total[name] + gradient * min(1.0, 1.0 / float(norm))
    return total


def check_exact(model, loss, x, y, pick):
    """Sums of the library against one record after another."""
    found = bounded_sum(model, loss, x, y, Clipped(1.0))
    records = [(pick(x, i), pick(y, i)) for i in range(6)]
    wanted = clipped_one_by_one(model, loss, records)
    assert max(float(g.abs().max()) for g in wanted.values()) > 1e-2
    for group in found.groups:
        for name, gradient in group.gradients.items():
            torch.testing.assert_close(
                gradient.to(torch.float32), wanted[name], rtol=1e-3, atol=1e-4
            )


# ---------------------------------------------------------------- several losses


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.kind, self.value = nn.Linear(5, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, x):
        h = torch.tanh(self.body(x))
        return {"kind": self.kind(h), "value": self.value(h)}


def both_losses(output, y):
    kind = functional.cross_entropy(output["kind"], y["kind"], reduction="none")
    return kind + 0.5 * (output["value"][:, 0] - y["value"]) ** 2


def two_targets(records):
    return {"kind": torch.arange(records) % 3, "value": torch.linspace(-1, 1, records)}


def one_of(values, index):
    if torch.is_tensor(values):
        return values[index : index + 1]
    return {name: value[index : index + 1] for name, value in values.items()}


def test_several_losses_are_bounded_as_their_sum():
    torch.manual_seed(1)
    x = torch.randn(6, 5)
    check_exact(
        TwoHeads(),
        both_losses,
        x,
        two_targets(6),
        lambda v, i: (
            v[i : i + 1] if torch.is_tensor(v) else {k: t[i : i + 1] for k, t in v.items()}
        ),
    )


def test_a_second_loss_or_a_term_beside_is_refused_and_nothing_is_charged():
    model = TwoHeads()
    data = {"x": torch.randn(100, 5), **two_targets(100)}
    run = make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), both_losses, data, plan()
    )
    batch = next(iter(run.loader))
    output = run.model(batch["x"])
    target = {"kind": batch["kind"], "value": batch["value"]}
    run.loss(output, target)
    with pytest.raises(StepError, match="all terms in one loss"):
        run.loss(output, target)
    with pytest.raises(UnsupportedModelError, match="Put all terms into the loss function"):
        output["kind"].square().mean().backward()
    assert run.steps_taken == 0


# ---------------------------------------------------------------- several optimizers


def several(model):
    return SeveralOptimizers(
        torch.optim.SGD(model.body.parameters(), lr=0.3, momentum=0.9),
        torch.optim.AdamW([*model.kind.parameters(), *model.value.parameters()], lr=0.01),
    )


def trained(optimizer_of, steps=4, **options):
    model = TwoHeads()
    torch.manual_seed(2)
    data = {"x": torch.randn(100, 5), **two_targets(100)}
    optimizer = optimizer_of(model)
    run = make_private(model, optimizer, both_losses, data, plan(), **options)
    for batch in run.loader.take(steps):
        run.step(batch["x"], {"kind": batch["kind"], "value": batch["value"]})
    return run


def test_several_optimizers_step_with_the_same_noisy_gradients():
    """The same noise, and all parts with one optimizer: one part each must agree."""
    both = trained(several)
    assert both.statement().steps == 4
    sgd = trained(lambda model: torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9), 1)
    adam = trained(lambda model: torch.optim.AdamW(model.parameters(), lr=0.01), 1)
    one = trained(several, 1)
    for name, value in one.model.state_dict().items():
        other = sgd if name.startswith("body") else adam
        torch.testing.assert_close(value, other.model.state_dict()[name])


def test_several_optimizers_are_saved_and_resumed(tmp_path):
    whole = trained(several)
    cut = trained(several, 2, ledger=tmp_path / "a.ledger")
    cut.save(tmp_path / "run.safetensors")
    cut.close()
    resumed = trained(several, 2, ledger=tmp_path / "a.ledger", resume=tmp_path / "run.safetensors")
    assert resumed.statement().steps == 4
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name


def test_schedules_of_single_optimizers_are_seen():
    model = TwoHeads()
    both = several(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(both.optimizers[0], lambda step: 0.1)
    assert both.param_groups[0]["lr"] == pytest.approx(0.03)
    both.load_state_dict(both.state_dict())
    schedule.optimizer.param_groups[0]["lr"] = 7.0
    assert both.param_groups[0]["lr"] == 7.0


def test_several_optimizers_refuse_what_is_wrong():
    model = TwoHeads()
    one = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="updated twice"):
        SeveralOptimizers(one, torch.optim.SGD(model.kind.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="at least one"):
        SeveralOptimizers()
    with pytest.raises(ValueError, match="1 optimizers, but there are 2"):
        several(model).load_state_dict({"optimizers": [one.state_dict()]})


def test_an_optimizer_of_a_part_cannot_step_without_noise():
    """Its gradients are there only after a private step, and then they are noisy."""
    model = TwoHeads()
    both = several(model)
    data = {"x": torch.randn(100, 5), **two_targets(100)}
    run = make_private(model, both, both_losses, data, plan())
    before = {name: p.clone() for name, p in model.named_parameters()}
    batch = next(iter(run.loader))
    run.loss(run.model(batch["x"]), {"kind": batch["kind"], "value": batch["value"]}).backward()
    both.optimizers[0].step()
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert run.steps_taken == 0


# ---------------------------------------------------------------- models used twice


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tower = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4))

    def forward(self, first, second):
        return (self.tower(first) * self.tower(second)).sum(1, keepdim=True)


def test_a_model_used_twice_for_one_record():
    torch.manual_seed(1)
    x = torch.randn(6, 5) * 2, torch.randn(6, 5) * 2
    y = (torch.arange(6) % 2).float()

    def loss(output, target):
        return functional.binary_cross_entropy_with_logits(output[:, 0], target, reduction="none")

    class OfPair(Siamese):
        def forward(self, pair):
            return super().forward(*pair)

    model = Siamese()
    wanted = clipped_one_by_one(
        OfPair(), loss, [((x[0][i : i + 1], x[1][i : i + 1]), y[i : i + 1]) for i in range(6)]
    )
    found = bounded_sum(model, loss, x, y, Clipped(1.0))
    for group in found.groups:
        for name, gradient in group.gradients.items():
            torch.testing.assert_close(
                gradient.to(torch.float32), wanted[name], rtol=1e-3, atol=1e-4
            )


def test_pairs_across_records_are_refused():
    """Contrast within the batch: every record's loss depends on all others."""
    torch.manual_seed(0)
    tower = nn.Linear(5, 4)

    def contrast(output, y):
        return functional.cross_entropy(
            output @ output.T, torch.arange(len(output)), reduction="none"
        )

    with pytest.raises(UnsupportedModelError):
        bounded_sum(tower, contrast, torch.randn(6, 5), torch.zeros(6), Clipped(1.0))


# ---------------------------------------------------------------- a generator and its judge


@pytest.fixture(scope="module")
def gan():
    spec = importlib.util.spec_from_file_location("private_gan", EXAMPLES / "private_gan.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_only_the_judge_of_a_gan_sees_pictures(gan):
    torch.manual_seed(0)
    x = torch.rand(60, 1, 28, 28) * 2 - 1
    drawing, run = gan.train(x, plan(steps=3, batch_size=12))
    assert run.statement().steps == 3
    assert run.steps_taken == 3
    torch.manual_seed(0)
    fresh = gan.generator()
    moved = [
        not torch.equal(old, new)
        for old, new in zip(fresh.parameters(), drawing.parameters(), strict=True)
    ]
    assert all(moved)


def test_each_record_of_a_gan_is_bounded(gan):
    """One record more moves the sum by no more than the printed sensitivity."""
    torch.manual_seed(0)
    model = gan.Discriminator(gan.generator())
    x = (torch.rand(8, 1, 28, 28) * 2 - 1) * 50
    estimator = Clipped(1.0)
    torch.manual_seed(5)
    whole = bounded_sum(model, gan.discriminator_losses, x, torch.ones(8), estimator)
    torch.manual_seed(5)
    less = bounded_sum(model, gan.discriminator_losses, x[:7], torch.ones(7), estimator)
    for first, second in zip(whole.groups, less.groups, strict=True):
        names = first.gradients
        assert not any(name.startswith("drawing") for name in names)
        moved = sum(((names[n] - second.gradients[n]).double() ** 2).sum() for n in names) ** 0.5
        assert 0.5 < float(moved) <= first.sensitivity


@pytest.mark.slow
def test_the_gan_runs_as_an_example(gan, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["private_gan.py", "--steps", "3"])
    gan.main()
    assert "Privacy statement: epsilon" in capsys.readouterr().out


# ---------------------------------------------------------------- features computed once


def test_features_of_a_frozen_public_part_are_computed_once():
    """Training a head on stored features is training the whole with the frozen part in front."""
    torch.manual_seed(0)
    frozen = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    frozen.eval().requires_grad_(False)
    x, y = torch.randn(100, 1, 6, 6), torch.arange(100) % 3
    results = []
    for stored in (False, True):
        torch.manual_seed(1)
        head = nn.Linear(4 * 16, 3)
        model = head if stored else nn.Sequential(frozen, head)
        with torch.no_grad():
            inputs = frozen(x) if stored else x
        optimizer = torch.optim.SGD(head.parameters(), lr=0.5)
        run = make_private(model, optimizer, nn.CrossEntropyLoss(), (inputs, y), plan())
        for batch, target in run.loader:
            run.step(batch, target)
        results.append((head.weight.detach().clone(), run.statement().history))
    torch.testing.assert_close(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]


# ---------------------------------------------------------------- augmented views


def test_views_are_watched_once_and_then_bound(monkeypatch):
    """A step with several views is proven like any other, and not watched for ever."""
    from noisewise.gradients.runner import Runner

    watched = []
    original = Runner._watched
    monkeypatch.setattr(
        Runner,
        "_watched",
        lambda self, *given, **more: (watched.append(1), original(self, *given, **more))[1],
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    data = torch.randn(100, 1, 6, 6), torch.arange(100) % 3
    run = make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        nn.CrossEntropyLoss(),
        data,
        plan(),
        views=3,
        augmentation=lambda x: torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(3), x),
    )
    counts = []
    for x, y in run.loader:
        watched.clear()
        run.step(x, y)
        counts.append(len(watched))
    assert counts[0] >= 1
    assert counts[1:] == [0, 0, 0]


def test_views_of_records_that_are_dicts():
    """Columns are augmented together; the mean of a record's views is bounded as one."""

    class OfColumns(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(5, 3)

        def forward(self, numbers, weights):
            return self.layer(numbers * weights)

    def scaled(columns):
        factor = 1 + torch.rand(len(columns["numbers"]), 1)
        return {"numbers": columns["numbers"] * factor, "weights": columns["weights"]}

    model = OfColumns()
    data = {
        "numbers": torch.randn(100, 5),
        "weights": torch.rand(100, 5),
        "y": torch.arange(100) % 3,
    }
    run = make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        nn.CrossEntropyLoss(),
        data,
        plan(),
        views=4,
        augmentation=scaled,
    )
    for batch in run.loader:
        y = batch.pop("y")
        run.step(batch, y)
    assert run.statement().steps == 4
