"""Aimed cases that a check with sample values let through: each is refused, naming its line."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from typer.testing import CliRunner

import noisewise as nw
from noisewise.cli import app
from noisewise.training import StepError


def cross_entropy(output, target):
    return functional.cross_entropy(output, target, reduction="none")


class Between(nn.Module):
    """Two layers, and something between them."""

    def __init__(self, between, head=True):
        super().__init__()
        self.a, self.b, self.between = nn.Linear(16, 8), nn.Linear(8, 3), between
        if not head:
            nn.init.zeros_(self.b.weight)
            nn.init.zeros_(self.b.bias)

    def forward(self, x, *more):
        return self.b(self.between(self.a(x), *more))


def rows(count=12):
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(count, 16, generator=generator),
        torch.randint(3, (count,), generator=generator),
    )


def normalised(h):
    return (h - h.mean(0)) / h.std(0)


def attended(h):
    return torch.softmax(h @ h.T, -1) @ h


def masked_centre(h, mask):
    return h - (h * mask.float()[:, None]).sum(0) / mask.sum().clamp_min(1)


def by_batch_maximum(h):
    return h / torch.clamp(h.abs().max() / 10, min=1)


def only_for_many(h):
    return h - h.mean(0) if len(h) > 8 else h


def relative(output, target):
    losses = cross_entropy(output, target)
    return losses / losses.detach().mean()


def centred(output, target):
    return cross_entropy(output - output.detach().mean(0), target)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, u, v):
        return functional.normalize(self.one(u), dim=1), functional.normalize(self.other(v), dim=1)


def contrast(output, target):
    return functional.cross_entropy(
        output[0] @ output[1].T, torch.arange(len(target)), reduction="none"
    )


def same(h):
    return h


X, Y = rows()
MASK = torch.arange(12) % 2 == 0
CASES = {
    "zero head, batch norm by hand": (Between(normalised, head=False), cross_entropy, X),
    "zero head, attention over the batch": (Between(attended, head=False), cross_entropy, X),
    "a mask that is a second input": (Between(masked_centre), cross_entropy, (X, MASK)),
    "divided by the batch's maximum": (Between(by_batch_maximum), cross_entropy, X),
    "mixes only more than eight records": (Between(only_for_many), cross_entropy, X),
    "loss over the mean loss": (Between(same), relative, X),
    "logits minus their batch mean": (Between(same), centred, X),
    "contrast on a tuple": (Pair(), contrast, (X, X.flip(0))),
}


@pytest.mark.parametrize("name", CASES)
def test_what_sample_values_did_not_show_is_refused_with_its_line(name):
    model, loss, x = CASES[name]
    proof = nw.prove_apart(model, loss, x, Y)
    assert not proof.proven
    assert "test_aimed.py:" in str(proof)
    for estimator in (nw.Clipped(1.0), nw.Factored(1.0)):
        with pytest.raises(nw.UnsupportedModelError, match=r"test_aimed\.py:\d+"):
            nw.bounded_sum(model, loss, x, Y, estimator)


def running(**options):
    settings = {"gradients": nw.Clipped(1.0), "noise_multiplier": 1.0, "steps": 5, "seed": 0}
    settings |= {"batch_size": 6, "delta": 1e-3}
    model = options.pop("model", None) or Between(same)
    plan = nw.Plan(**(settings | options.pop("plan", {})))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = options.pop("loss", cross_entropy)
    return nw.make_private(model, optimizer, loss, (X, Y), plan, **options)


def all_steps(run):
    for x, y in run.loader:
        run.step(x, y)


def test_a_term_beside_the_loss_has_no_way_into_the_model():
    run = running()
    x, y = next(iter(run.loader))
    output = run.model(x)
    penalty = 100 * (output - output.mean(0)).square().sum()
    with pytest.raises(nw.UnsupportedModelError, match="did not return"):
        (run.loss(output, y) + penalty).backward()
    assert run.steps_taken == 0
    run.discard()


def test_what_is_computed_between_model_and_loss_is_refused():
    run = running()
    x, y = next(iter(run.loader))
    output = run.model(x)
    with pytest.raises(nw.UnsupportedModelError, match="not the output"):
        run.loss(output - output.detach().mean(0), y)
    run.discard()


def mixed_up(x, y):
    return 0.7 * x + 0.3 * x.flip(0), y


def resampled(x, y):
    chosen = torch.zeros(len(x), dtype=torch.long)
    return x[chosen], y[chosen]


def shifted(x, y):
    return x[1:], y[:-1]


def changed_in_place(x, y):
    x.sub_(x.mean(0))
    return x, y


@pytest.mark.parametrize("change", [mixed_up, resampled, shifted, changed_in_place])
def test_a_changed_batch_is_refused_before_a_charge(change):
    for by_hand in (False, True):
        run = running(plan={"batch_size": 11})
        x, y = change(*next(iter(run.loader)))
        step = (lambda run, x, y: run.loss(run.model(x), y)) if by_hand else type(run).step
        with pytest.raises(StepError, match="changed one"):
            step(run, x, y)
        assert run.steps_taken == 0
        run.discard()


def test_types_shapes_and_columns_of_the_loaders_batch_are_still_that_batch():
    run = running(loss=lambda output, y: cross_entropy(output, y.long().flatten()))
    for x, y in run.loader:
        run.step(x.clone().reshape(len(x), 4, 4).flatten(1), y.float().unsqueeze(1))
    assert "promised" not in run.statement().sampler


def test_an_augmentation_is_proven_and_one_that_mixes_is_refused():
    good = running(augmentation=lambda x: x + 0.1 * torch.randn_like(x), views=2)
    good.step(*next(iter(good.loader)))
    bad = running(augmentation=lambda x: x + 0.1 * x[torch.randperm(len(x))])
    with pytest.raises(nw.UnsupportedModelError, match=r"test_aimed\.py"):
        bad.step(*next(iter(bad.loader)))
    assert bad.steps_taken == 0


class Averaging(nn.Module):
    def __init__(self, kept):
        super().__init__()
        self.layer, self.kept = nn.Linear(16, 3), kept
        self.register_buffer("mean", torch.zeros(16))
        self.seen = []

    def forward(self, x):
        if self.kept == "buffer":
            self.mean.mul_(0.9).add_(x.mean(0))
        if self.kept == "list":
            self.seen.append(x.detach()[0])
        if self.kept == "attribute":
            self.last = x.detach()
        return self.layer(x)


@pytest.mark.parametrize(
    ("kept", "named"), [("buffer", '"mean"'), ("list", "seen"), ("attribute", "last")]
)
def test_state_that_records_write_is_named_and_refused(kept, named):
    model = Averaging(kept)
    proof = nw.prove_apart(model, cross_entropy, X, Y)
    assert not proof.proven
    assert any(named in name for name in proof.buffers)
    with pytest.raises(nw.UnsupportedModelError, match="keeps values of records"):
        nw.bounded_sum(Averaging(kept), cross_entropy, X, Y, nw.Clipped(1.0))
    assert not model.mean.any()


def test_another_path_through_the_code_is_proven_before_its_result_is_taken():
    class Turning(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.calls = nn.Linear(16, 3), 0

        def forward(self, x):
            self.calls += 1
            return self.layer(x if self.calls < 4 else x - x.mean(0))  # state moves once a step

    run = running(model=Turning())
    with pytest.raises(nw.UnsupportedModelError, match=r"test_aimed\.py"):
        all_steps(run)
    assert 1 <= run.steps_taken < 5


def test_axes_and_wiring_are_part_of_the_path_and_floats_are_not():
    class Steered(nn.Module):
        axis, first, factor = -1, True, 1.0

        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(16, 3)

        def forward(self, x):
            h = x.reshape(len(x), 4, 4)
            one, other = h.softmax(self.axis), h.tanh()
            return self.layer(((one if self.first else other) * self.factor).flatten(1))

    model = Steered()
    engine = nw.gradients.GradientEngine(model, cross_entropy, nw.Clipped(1.0), chunk=12)

    def paths():
        engine.sum(X, Y)
        return sum(len(w.paths) for w in engine._wirings.values())

    assert paths() == paths() == 1
    model.factor = 0.5
    assert paths() == 1
    model.axis = -2
    assert paths() == 2
    model.first = False
    assert paths() == 3


def test_assumed_apart_is_checked_and_said(tmp_path):
    class Looking(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(16, 3)

        def forward(self, x):
            if bool((x > 100).any()):  # changes nothing here, but a value is read
                x = x.clamp(-100, 100)
            return self.layer(x)

    with pytest.raises(nw.UnsupportedModelError, match="Python number"):
        all_steps(running(model=Looking()))
    run = running(model=Looking(), plan={"assume_apart": True})
    all_steps(run)
    statement = run.statement()
    assert any("assumed, not proven" in line for line in statement.assumptions)
    assert "assumed, not proven" in str(statement)
    file = tmp_path / "statement.json"
    file.write_text(statement.to_json())
    verified = CliRunner().invoke(app, ["verify", str(file)])
    assert verified.exit_code == 0
    assert "assumed, not proven" in " ".join(verified.output.split())
    lying = running(model=Between(normalised), plan={"assume_apart": True, "batch_size": 11})
    with pytest.raises(nw.UnsupportedModelError, match="changes with the records around it"):
        all_steps(lying)
    assert lying.steps_taken == 0


def test_assumed_apart_is_checked_at_every_step():
    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.mixes = nn.Linear(16, 3), False

        def forward(self, x):
            bool((x > 100).any())  # not proven
            h = self.layer(x)
            return h - h.mean(0) if self.mixes else h

    run = running(model=Late(), plan={"assume_apart": True})
    batches = iter(run.loader)
    run.step(*next(batches))
    run.model.mixes = True
    with pytest.raises(nw.UnsupportedModelError, match="changes with the records around it"):
        run.step(*next(batches))
    assert run.steps_taken == 1


def test_a_loss_divided_by_the_number_of_records_is_harmless_in_pieces_of_one_size():
    def divided(output, target):
        return cross_entropy(output, target) / len(target)

    model = Between(same)
    engine = nw.gradients.GradientEngine(model, divided, nw.Clipped(1e-4), chunk=8)
    whole, without = engine.sum(X, Y), engine.sum(X[1:], Y[1:])
    moved = math.sqrt(
        sum(
            float((whole.gradients[n] - without.gradients[n]).double().square().sum())
            for n in whole.gradients
        )
    )
    assert moved <= whole.groups[0].sensitivity


def test_randomness_of_every_kind_is_no_mixing():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(16, 4, 16, dropout=0.2, batch_first=True)
            self.encoder, self.head = layer, nn.Linear(16, 3)

        def forward(self, x):
            h = self.encoder(x.reshape(len(x), 1, 16))[:, 0]
            h = functional.dropout(h, 0.1) + torch.randn_like(h)
            kept = torch.rand(len(h), 1) < 0.9
            return self.head(h * kept / 0.9)

    assert nw.prove_apart(Noisy(), cross_entropy, X, Y).proven


def test_frozen_batch_norm_is_an_affine_map_and_is_exact():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
    model(X)  # statistics of its own
    model[1].eval()
    assert nw.prove_apart(model, cross_entropy, X, Y).proven
    assert nw.nn.fix(model)[1].running_mean is not None
    result = nw.bounded_sum(model, cross_entropy, X, Y, nw.Clipped(1e9))
    expected = torch.autograd.grad(cross_entropy(model(X), Y).sum(), list(model.parameters()))
    for value, name in zip(expected, dict(model.named_parameters()), strict=True):
        torch.testing.assert_close(result.gradients[name], value, rtol=1e-4, atol=1e-5)
    model.train()
    proof = nw.prove_apart(model, cross_entropy, X, Y)
    assert "BatchNorm1d" in str(proof)


@pytest.mark.parametrize("name", ["layers", "encoder", "convolutions", "recurrent"])
def test_a_run_like_the_one_that_was_watched_is_not_watched_again(name):
    encoder = nn.TransformerEncoderLayer(16, 4, 16, batch_first=True)
    model = {
        "layers": nn.Sequential(nn.Linear(16, 8), nn.Dropout(0.1), nn.ReLU(), nn.Linear(8, 3)),
        "encoder": nn.Sequential(nn.Unflatten(1, (4, 4)), nn.Linear(4, 16), encoder, nn.Flatten()),
        "convolutions": nn.Sequential(
            nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten()
        ),
        "recurrent": Recurrent(),
    }[name]
    watched = []
    engine = nw.gradients.GradientEngine(model, cross_entropy, nw.Clipped(1.0), chunk=12)
    original = engine._watched
    engine._watched = lambda *given: watched.append(name) or original(*given)
    for _ in range(4):
        engine.sum(X, Y)
    assert len(watched) == 1


def half_a_matrix():
    class Symmetric(nn.Module):
        def forward(self, weight):
            return weight.triu() + weight.triu(1).T

    layer = nn.Linear(16, 16)
    nn.utils.parametrize.register_parametrization(layer, "weight", Symmetric())
    return layer


def with_hooks():
    layer, shapes = nn.Linear(16, 16), set()
    layer.register_forward_pre_hook(lambda module, inputs: None)
    layer.register_forward_hook(lambda module, inputs, output: shapes.add(tuple(output.shape)))
    layer.register_forward_hook(lambda module, inputs, output: 2 * output)
    return layer


@pytest.mark.parametrize(
    "layer",
    [half_a_matrix, with_hooks, lambda: nn.utils.parametrizations.weight_norm(nn.Linear(16, 16))],
)
@pytest.mark.filterwarnings("error::noisewise.gradients.WatchedWarning")
def test_forward_hooks_and_parametrizations_are_bound_by_path(layer):
    model = nn.Sequential(layer(), nn.ReLU(), nn.Linear(16, 3))
    engine = nw.gradients.GradientEngine(model, cross_entropy, nw.Clipped(1.0), chunk=12)
    for _ in range(3):
        engine.sum(X, Y)
    assert not engine._slow


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.GRU(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.layer(x.reshape(len(x), 4, 4))[0][:, -1])


def test_a_proof_leaves_nothing_on_the_model():
    model = Between(same)
    before = set(vars(model))
    assert nw.prove_apart(model, cross_entropy, X, Y).proven
    assert set(vars(model)) == before
