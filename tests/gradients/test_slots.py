"""A record's place in a batch must not matter: products are aligned, and what remains is seen."""

import itertools

import pytest
import torch
from torch import nn

import noisewise as nw
from noisewise.gradients import GradientEngine
from noisewise.gradients.places import by_content, in_order


def engine_of(model, loss, records):
    return GradientEngine(model, loss, nw.Clipped(1.0), chunk=records)


@pytest.mark.parametrize("outputs", [1, 2, 3, 10])
@pytest.mark.parametrize("hidden", [0, 6, 10, 64])
def test_dense_layers_of_any_width_treat_all_places_alike(hidden, outputs):
    torch.manual_seed(0)
    for width, records in itertools.product((1, 3, 5, 13, 17, 57), (8, 20, 64)):
        model = nn.Linear(width, outputs)
        if hidden:
            model = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, outputs))
        engine = engine_of(model, nn.MSELoss(), records)
        engine.sum(torch.randn(records, width), torch.rand(records, outputs))
        assert engine.unevenness == 0.0


@pytest.mark.parametrize("records", [8, 200])
@pytest.mark.parametrize("gradients", [nw.Clipped(1.0), nw.Factored(1.0)])
def test_a_last_bit_that_depends_on_the_place_flips_nobody(gradients, records):
    # Every record lies on the kink of its loss as it is computed in the place that it has.
    torch.manual_seed(0)
    model = nn.Linear(17, 5)
    x = torch.randn(records, 17)

    def loss(output, target):
        return (output[:, 0] - target).abs()

    with torch.no_grad():
        y = model(x)[:, 0]
    whole = nw.bounded_sum(model, loss, x, y, gradients)
    less = nw.bounded_sum(model, loss, x[1:], y[1:], gradients)
    for one, other in zip(whole.groups, less.groups, strict=True):
        moved = torch.cat([(one.gradients[n] - other.gradients[n]).flatten() for n in one.names])
        assert float(moved.norm()) <= one.sensitivity


def by_row(output, target):
    return nn.functional.cross_entropy(output, target, reduction="none") * torch.where(
        torch.arange(len(target)) % 2 == 0, 1.0, -1.0
    )


def test_rows_that_are_treated_differently_move_nobody_in_a_sum():
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 3), torch.randn(20, 4), torch.randint(3, (20,))
    whole = nw.bounded_sum(model, by_row, x, y, nw.Clipped(0.1))
    for left in (0, 7, 19):
        keep = [i for i in range(20) if i != left]
        less = nw.bounded_sum(model, by_row, x[keep], y[keep], nw.Clipped(0.1))
        pairs = zip(whole.groups, less.groups, strict=True)
        for one, other in pairs:
            moved = [(one.gradients[n] - other.gradients[n]).flatten() for n in one.names]
            assert float(torch.cat(moved).norm()) <= one.sensitivity


def test_rows_that_are_treated_differently_are_refused_in_training():
    model, x, y = nn.Linear(4, 3), torch.randn(40, 4), torch.randint(3, (40,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = nw.Plan(gradients=nw.Clipped(1.0), noise_multiplier=1.0, steps=2, batch_size=20)
    run = nw.make_private(model, optimizer, by_row, (x, y), plan)
    inputs, targets = next(iter(run.loader))
    with pytest.raises(nw.UnsupportedModelError, match="by their place"):
        run.step(inputs, targets)
    assert run.steps_taken == 0


def test_chance_is_no_difference_between_places():
    class Timed(nn.Module):
        """A step of time drawn for every record, as diffusion models do."""

        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 3)

        def forward(self, x):
            time = torch.randint(0, 10, (len(x),)).unsqueeze(1) / 10
            return self.last(nn.functional.dropout(self.first(x * time), 0.5))

    engine = engine_of(Timed(), nn.CrossEntropyLoss(), 8)
    engine.sum(torch.randn(8, 16), torch.randint(3, (8,)))
    assert engine.unevenness == 0.0
    assert engine.random


def test_records_keep_their_slots_whoever_else_is_there():
    drawn = torch.Generator().manual_seed(0)
    x = torch.randint(0, 4, (50, 2), generator=drawn)  # some are equal
    y = torch.zeros(50)

    def slots(keep):
        pieces = by_content(x[keep], y[keep], len(keep), 8)
        return sorted(
            (slot, *x[keep][record].tolist())
            for piece in pieces
            for slot, record in enumerate(piece.tolist())
            if record >= 0
        )

    everyone = slots(list(range(50)))
    assert len(everyone) == 50
    for left in range(0, 50, 7):
        remaining = slots([i for i in range(50) if i != left])
        assert set(remaining) <= set(everyone)
        assert len(remaining) == 49


def test_in_order_every_record_has_one_slot():
    pieces = in_order(10, 4)
    assert [piece.tolist() for piece in pieces] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, -1, -1]]


def test_the_size_of_a_batch_is_hidden_from_the_loss():
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 3), torch.randn(9, 4), torch.randint(3, (9,))

    def divided(output, target):
        return nn.functional.cross_entropy(output, target, reduction="none") / len(target)

    whole = nw.bounded_sum(model, divided, x, y, nw.Clipped(1.0))
    less = nw.bounded_sum(model, divided, x[:-1], y[:-1], nw.Clipped(1.0))
    alone = nw.bounded_sum(model, divided, x[-1:], y[-1:], nw.Clipped(1.0))
    for name, value in whole.gradients.items():
        assert torch.allclose(value, less.gradients[name] + alone.gradients[name], atol=1e-6)


def test_norms_are_in_the_order_of_the_records():
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 3), torch.randn(20, 4), torch.randint(3, (20,))
    plain = nw.bounded_sum(model, nn.CrossEntropyLoss(), x, y, nw.Clipped(1.0)).norms
    placed = nw.bounded_sum(model, by_row, x, y, nw.Clipped(1.0)).norms
    for name, values in plain.items():
        assert torch.allclose(values, placed[name], rtol=1e-5)


def test_rows_that_are_treated_differently_move_nobody_though_chance_is_involved():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(1e-9), nn.Linear(4, 3))
    x, y = torch.randn(8, 4), torch.randint(3, (8,))
    whole = nw.bounded_sum(model, by_row, x, y, nw.Clipped(0.1), chunk=8)
    less = nw.bounded_sum(model, by_row, x[1:], y[1:], nw.Clipped(0.1), chunk=8)
    for one, other in zip(whole.groups, less.groups, strict=True):
        moved = [(one.gradients[n] - other.gradients[n]).flatten() for n in one.names]
        assert float(torch.cat(moved).norm()) <= one.sensitivity


def test_a_piece_has_a_size():
    with pytest.raises((TypeError, ValueError), match="chunk"):
        nw.bounded_sum(
            nn.Linear(4, 3), by_row, torch.randn(8, 4), torch.zeros(8).long(), nw.Clipped(1.0),
            chunk=None,
        )  # fmt: skip
