"""A record's place in a batch must not matter: it is shown not to, or every record has its own."""

import functools
import itertools
import math
import random

import numpy as np
import pytest
import torch
from torch import nn

import noisewise as nw
from noisewise.gradients import GradientEngine, summation
from noisewise.gradients.engine import _InPlace
from noisewise.gradients.places import by_chance, by_content, in_order, spread


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
        assert not engine.own_places


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


def run_of(loss, model=None, **options):
    torch.manual_seed(0)
    model = nn.Linear(4, 3) if model is None else model
    data = (torch.randn(40, 4), torch.randint(3, (40,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = nw.Plan(gradients=nw.Clipped(1.0), noise_multiplier=1.0, steps=2, batch_size=20)
    return nw.make_private(model, optimizer, loss, data, plan, **options)


@pytest.mark.parametrize("by_hand", [False, True])
def test_rows_that_are_treated_differently_have_their_own_places_in_training(by_hand):
    run = run_of(by_row)
    for x, y in run.loader:
        if by_hand:
            run.optimizer.zero_grad()
            run.loss(run.model(x), y).backward()
            run.optimizer.step()
        else:
            run.step(x, y)
        assert run._engine.own_places
    assert run.steps_taken == 2
    assert "place" not in str(run.statement())


@pytest.mark.parametrize("by_hand", [False, True])
def test_one_record_more_or_less_moves_nobody_in_training(by_hand, monkeypatch):
    """Whatever slots are drawn: the sum with a record and without differ by that record alone."""
    torch.manual_seed(1)
    model, x, y = nn.Linear(4, 3), torch.randn(20, 4), torch.randint(3, (20,))
    slots = torch.randint(5, (20,))

    def summed(keep):
        engine = GradientEngine(model, by_row, nw.Clipped(0.1), expected=20.0)
        monkeypatch.setattr(summation, "by_chance", lambda _, size: spread(slots[keep], size))
        for _ in range(2):  # the first batch finds out that places matter
            if by_hand:
                engine.losses(engine.forward(x[keep]), y[keep]).backward()
                result = engine.collect()
                for parameter in model.parameters():
                    parameter.grad = None
            else:
                result = engine.sum(x[keep], y[keep])
        assert engine.own_places
        engine.detach()
        return torch.cat([v.flatten() for v in result.gradients.values()]), result

    whole, result = summed(list(range(20)))
    for left in (0, 7, 19):
        less, _ = summed([i for i in range(20) if i != left])
        assert float((whole - less).norm()) <= result.groups[0].sensitivity


def test_slots_by_chance_hold_every_record_once_and_where_it_was_drawn():
    torch.manual_seed(3)
    drawn = torch.randint(5, (23,))
    torch.manual_seed(3)
    pieces = by_chance(23, 5)
    found = {r: slot for piece in pieces for slot, r in enumerate(piece.tolist()) if r >= 0}
    assert [found[r] for r in range(23)] == drawn.tolist()
    assert len(pieces) == int(torch.bincount(drawn).max())


@pytest.mark.parametrize("records", [64, 256, 1024])
def test_slots_of_ones_own_cost_less_than_twice_the_records(records):
    torch.manual_seed(0)
    size = math.ceil(math.sqrt(records))
    work = [len(by_chance(records, size)) * size / records for _ in range(200)]
    assert 1.2 < sum(work) / len(work) < 1.6


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
    assert not engine.own_places
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


def _only_class_seven(output, target):
    third = torch.arange(len(target)) == 3
    losses = nn.functional.cross_entropy(output, target, reduction="none")
    return torch.where((target == 7) & third, 2 * losses, losses)


def _only_huge(output, target):
    losses = nn.functional.cross_entropy(output, target, reduction="none")
    excess = (output.amax(1) - 1e6).relu()
    return losses + excess * torch.arange(len(target))


def _one_row_of_huge(output, target):
    losses = nn.functional.cross_entropy(output, target, reduction="none")
    parts = list(losses.unbind())
    parts[3] = torch.where(parts[3] > 1e6, 2 * parts[3], parts[3])
    return torch.stack(parts)


def _by_size(output, target):
    losses = nn.functional.cross_entropy(output, target, reduction="none")
    scale = torch.linspace(0, 1, len(target))
    return losses * torch.where(losses > 1e4, scale, torch.ones(()))


def _sorted_into_bins(output, target):
    losses = nn.functional.cross_entropy(output, target, reduction="none")
    late = torch.arange(len(target)) > 10
    return losses.masked_fill((output.argmax(1) == 7) & late, 0.0)


def _sign_of(draws):
    def loss(output, target):
        places = torch.arange(len(target)) % 2
        losses = nn.functional.cross_entropy(output, target, reduction="none")
        return losses * (2 * draws(places) - 1)

    return loss


def _whole_product(output, target):
    losses = nn.functional.cross_entropy(output, target, reduction="none")
    return losses * (1 - 2 * ((target // 7 * torch.arange(len(target))) % 2))


DRAWS = {
    "bernoulli": lambda places: torch.bernoulli(places.float()),
    "bernoulli_": lambda places: torch.empty(len(places)).bernoulli_(places.float()),
    "normal": lambda places: torch.normal(places.float(), 1e-9),
    "poisson": lambda places: torch.poisson(100.0 * places) / 100,
    "multinomial": lambda places: torch.multinomial(
        torch.stack([1.0 - places, 0.0 + places], 1), 1
    ).squeeze(1),
}


def _ignoring_in_the_second_half(output, target):
    half = len(target) // 2
    parts = [
        nn.functional.cross_entropy(o, t, reduction="none", ignore_index=ignored)
        for o, t, ignored in zip(
            (output[:half], output[half:]), (target[:half], target[half:]), (-100, 7), strict=True
        )
    ]
    return torch.cat(parts)


def _normed_with_two_constants(output, target):
    half = len(target) // 2
    parts = [
        nn.functional.layer_norm(part, part.shape[1:], eps=eps)
        for part, eps in ((output[:half], 1e-5), (output[half:], 1.1e-5))
    ]
    return nn.functional.cross_entropy(torch.cat(parts), target, reduction="none")


def _nearly_alike(output, target):
    losses = nn.functional.cross_entropy(output, target, reduction="none")
    return losses * torch.linspace(1, 1.0000001, len(target), dtype=torch.float64)


def _looked_up_by_place(output, target):
    table = torch.zeros(len(target), 9)
    table[3, 7] = 1e3
    losses = nn.functional.cross_entropy(output, target, reduction="none")
    return losses * (1 + table[torch.arange(len(target)), target])


def _another_column_for_everybody(output, target):
    chosen = torch.arange(len(target)) % 9
    return output.gather(1, chosen.unsqueeze(1)).squeeze(1).square() + 0.0 * target


def _diagonal(output, target):
    wide = torch.cat([output, output], 1)[:, : len(target)]
    return wide.diagonal().square() + 0.0 * target


def _drawn_twice_as_often_here(output, target):
    draws = torch.rand(len(target) // 2).repeat(2)
    losses = nn.functional.cross_entropy(output, target, reduction="none")
    return losses * torch.cat([draws[:3], torch.rand(len(target) - 3)])


def _filled_in_place(output, target):
    losses = nn.functional.cross_entropy(output, target, reduction="none").clone()
    return losses.index_fill_(0, torch.tensor([2]), 0.0)


def _added_in_place(output, target):
    losses = nn.functional.cross_entropy(output, target, reduction="none")
    longer = torch.zeros(len(target)).index_add(0, torch.arange(len(target)), losses)
    longer[2:4] *= 2
    return longer


def _rolled(output, target):
    rows = [row.roll(i) for i, row in enumerate(output.unbind())]
    return nn.functional.cross_entropy(torch.stack(rows), target, reduction="none")


def _first_row_detached(output, target):
    rows = torch.cat([output[:1].detach(), output[1:]])
    return nn.functional.cross_entropy(rows, target, reduction="none")


def _smoothed_by_place(output, target):
    smooth = 0.1 * (torch.arange(len(target)) > 7)
    plain = nn.functional.cross_entropy(output, target, reduction="none")
    even = -output.log_softmax(1).mean(1)
    return (1 - smooth) * plain + smooth * even


def _lower_triangle(output, target):
    return output[:, :9].tril().square().sum(1) + 0.0 * target


def _weighted_by(weights):
    def loss(output, target):
        losses = nn.functional.cross_entropy(output, target, reduction="none")
        return losses * weights(len(target))

    return loss


def _partly(size):
    whole = torch.full((size,), 0.5)
    whole[3:].fill_(0.7)
    return whole


def _partly_changed(size):
    whole = torch.full((size,), 0.5)
    whole[3:].mul_(2)
    return whole


def _partly_drawn(size):
    whole = torch.rand(size)
    whole[3:].normal_()
    return whole


def _shared_memory(size):
    whole = torch.ones(size)
    whole.numpy()[3:] = 0.3
    return whole


def _called_back(size):
    numbers = iter(range(1, 1000))
    return torch.ones(size).apply_(lambda _: next(numbers) / 10)


def _overlapping(size):
    whole = torch.full((size,), 0.5)
    whole.as_strided((3, 3), (1, 1)).fill_(0.9)
    return whole


def _half_of_the_bytes(size):
    whole = torch.zeros(size)
    whole.view(torch.int16)[:size].fill_(16000)
    return whole


def _first_draw_divides(size):
    draws = torch.rand(size)
    return draws / draws[:1].sum()


def _first_draw_decides(size):
    draws = torch.rand(size)
    return draws if draws[0] > 0.5 else 1 - draws


def _copied_neighbours(size):
    draws = torch.rand(size + 1)
    return draws[:-1].clone() * draws[1:].clone()


def _sorted_outside(size):
    draws = torch.rand(size)
    draws.numpy().sort()
    return draws


WEIGHTS = {
    "shared memory": _shared_memory,
    "called back": _called_back,
    "overlapping": _overlapping,
    "half of the bytes": _half_of_the_bytes,
    "the first draw divides": _first_draw_divides,
    "the first draw decides": _first_draw_decides,
    "copies of neighbours": _copied_neighbours,
    "sorted outside": _sorted_outside,
    "drawn for pairs": lambda size: torch.rand(size // 2).repeat_interleave(2),
    "drawn for halves": lambda size: torch.rand(size // 2).expand(2, size // 2).reshape(size),
    "dropped in pairs": lambda size: (
        nn.functional.dropout(torch.ones(size // 2, 1), 0.5).expand(size // 2, 2).reshape(size)
    ),
    "halves of numbers": lambda size: torch.full((size // 2,), 0.5).view(torch.int16),
    "parts of complex numbers": lambda size: torch.view_as_real(
        torch.full((size // 2,), 1 + 2j)
    ).flatten(),
    "halves of draws": lambda size: torch.randint(0, 5, (size // 2,), dtype=torch.int32).view(
        torch.int16
    ),
    "joined": lambda size: torch.cat([torch.full((3,), 0.5), torch.full((size - 3,), 0.7)]),
    "stacked": lambda size: torch.stack(
        [torch.full((size // 2,), 0.5), torch.full((size // 2,), 0.7)], 1
    ).flatten(),
    "padded": lambda size: nn.functional.pad(torch.full((size - 1,), 0.5), (1, 0)),
    "partly": _partly,
    "partly changed": _partly_changed,
    "partly drawn": _partly_drawn,
    "added up": lambda size: torch.full((size,), 0.5).cumsum(0),
    "sorted": lambda size: 0.5 * torch.full((size,), 0.5).argsort(stable=True),
    "transformed": lambda size: torch.fft.fft(torch.full((size,), 0.5)).real,
    "triangle": lambda size: torch.full((size, size), 0.5).tril().sum(1),
    "drawn in pairs": lambda size: (torch.rand(size // 2, 1) * torch.full((1, 2), 0.5)).flatten(),
    "drawn with a neighbour": lambda size: (lambda d: d[:-1] * d[1:])(torch.rand(size + 1)),
    "drawn, the first for all": lambda size: (lambda d: d + d[0])(torch.rand(size)),
    "permuted": lambda size: torch.randperm(size),
    "made of floats": lambda size: torch.tensor([0.5] * 3 + [0.7] * (size - 3)),
    "a running product": lambda size: torch.full((size,), 0.5).cumprod(0),
}


def _neighbours_draws(output, target):
    draws = torch.rand(len(target) + 1)
    losses = nn.functional.cross_entropy(output, target, reduction="none")
    return losses * draws[:-1] + losses.square() * draws[1:]


def _everybody_gets_the_first_draw(output, target):
    draws = torch.rand(len(target))
    losses = nn.functional.cross_entropy(output, target, reduction="none")
    return losses * draws + losses.square() * draws[:1]


def _signs_of_zero(output, target):
    losses = nn.functional.cross_entropy(output, target, reduction="none")
    signs = ((torch.arange(len(target)) % 2) * 2 - 1).float()
    return torch.copysign(losses, signs * torch.zeros(len(target), dtype=torch.long))


def _public_rows_below(output, target):
    losses = nn.functional.cross_entropy(output, target, reduction="none")
    whole = torch.cat([losses, torch.linspace(0, 1, len(target))]) * 2
    return whole[: len(target)] * whole[len(target) :]


def _solved(output, target):
    losses = nn.functional.cross_entropy(output, target, reduction="none")
    sides = torch.linspace(1, 2, len(target)).view(-1, 1)
    return torch.linalg.solve(1 + losses.view(-1, 1, 1), sides).view(-1)


def _grouped(output, target):
    losses = nn.functional.cross_entropy(output, target, reduction="none")
    weight = torch.tensor([1, 2, 2, 1] * (len(target) // 2)).float().view(-1, 1, 1)
    found = nn.functional.conv1d(losses.view(1, -1, 1), weight, groups=len(target))
    return found.view(-1, 2)[:, 0]


def _far_columns(output, target):
    wide = output.repeat(1, 2000)
    columns = 15997 * (torch.arange(len(target)) % 2)
    return wide.gather(1, columns.unsqueeze(1)).squeeze(1).square() + 0.0 * target


def _copied_in_two_arrangements(output, target):
    losses = nn.functional.cross_entropy(output, target, reduction="none").unsqueeze(1)
    draws = torch.rand(len(target), len(target))
    return (losses * draws.clone() + losses.square() * draws.t().clone()).sum(1)


def _copied_twice(output, target):
    losses = nn.functional.cross_entropy(output, target, reduction="none").unsqueeze(1)
    draws = torch.rand(len(target), len(target))
    first, second = draws.clone(), draws.clone()
    return (losses * first + losses.square() * second.t()).sum(1)


DIFFERENT = [
    _copied_in_two_arrangements,
    _copied_twice,
    _signs_of_zero,
    _public_rows_below,
    _solved,
    _grouped,
    _far_columns,
    _lower_triangle,
    _neighbours_draws,
    _everybody_gets_the_first_draw,
    *[_weighted_by(weights) for weights in WEIGHTS.values()],
    *[_sign_of(draws) for draws in DRAWS.values()],
    _only_class_seven,
    _only_huge,
    _one_row_of_huge,
    _by_size,
    _sorted_into_bins,
    _whole_product,
    _ignoring_in_the_second_half,
    _normed_with_two_constants,
    _nearly_alike,
    _looked_up_by_place,
    _another_column_for_everybody,
    _diagonal,
    _drawn_twice_as_often_here,
    _filled_in_place,
    _added_in_place,
    _rolled,
    _first_row_detached,
    _smoothed_by_place,
]


@pytest.mark.parametrize("loss", DIFFERENT)
def test_places_that_are_treated_differently_are_seen(loss):
    # For some values, by chance, in a last bit, by a setting, or by what is taken of a record.
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 9), torch.randn(16, 4), torch.zeros(16, dtype=torch.long)
    engine = engine_of(model, loss, 16)
    engine.sum(x, y)
    assert engine.own_places


class _Weighted(nn.Module):
    """A learnt weight for every place: equal at first."""

    def __init__(self):
        super().__init__()
        self.linear, self.places = nn.Linear(4, 9), nn.Parameter(torch.ones(16, 1))
        self.places.requires_grad_(False)

    def forward(self, x):
        return self.linear(x) * self.places[: len(x)]


class _Padded(nn.Module):
    """A buffer with a number for every place, one of which is written while it runs."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 9)
        self.register_buffer("scale", torch.linspace(0, 1, 16).unsqueeze(1))

    def forward(self, x):
        self.scale[3:4].zero_()
        return self.linear(x) * self.scale


def test_a_buffer_of_which_one_entry_is_written_is_not_taken_for_equal():
    torch.manual_seed(0)
    engine = engine_of(_Padded(), nn.CrossEntropyLoss(), 16)
    try:
        engine.sum(torch.randn(16, 4), torch.zeros(16, dtype=torch.long))
    except nw.UnsupportedModelError:
        return
    assert engine.own_places


def test_a_weight_for_every_place_is_seen_though_all_are_equal_now():
    torch.manual_seed(0)
    engine = engine_of(_Weighted(), nn.CrossEntropyLoss(), 16)
    engine.sum(torch.randn(16, 4), torch.zeros(16, dtype=torch.long))
    assert engine.own_places


def test_a_program_that_takes_no_made_up_record_is_compared_on_one_of_its_own():
    def shifted(output, target):  # classes from two on
        return nn.functional.nll_loss(output.log_softmax(1), target - 2, reduction="none")

    torch.manual_seed(0)
    engine = engine_of(nn.Linear(4, 3), shifted, 16)
    engine.sum(torch.randn(16, 4), torch.randint(2, 5, (16,)))
    assert not engine.own_places


def test_halves_that_go_through_the_same_layer_are_allowed():
    class Halves(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x):
            return torch.cat([self.linear(part) for part in x.chunk(2)])

    torch.manual_seed(0)
    model, x, y = Halves(), torch.randn(20, 4), torch.randint(3, (20,))
    result = nw.bounded_sum(model, nn.CrossEntropyLoss(), x, y, nw.Clipped(1.0))
    plain = nw.bounded_sum(model.linear, nn.CrossEntropyLoss(), x, y, nw.Clipped(1.0))
    for name, value in plain.gradients.items():
        assert torch.allclose(value, result.gradients["linear." + name], atol=1e-6)


def _own_entry(output, target):
    return -output.log_softmax(1)[torch.arange(len(target)), target]


def _own_weight(output, target):
    weights = torch.tensor([1.0, 2.0, 3.0, 1.0, 1.0, 1.0, 1.0, 5.0, 1.0])
    losses = nn.functional.cross_entropy(output, target, reduction="none")
    return losses * weights[target] * torch.where(losses > 3, 0.5, 1.0)


@pytest.mark.parametrize("loss", [_own_entry, _own_weight, nn.CrossEntropyLoss()])
def test_what_depends_on_the_record_alone_is_no_matter_of_places(loss):
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 9), torch.randn(16, 4), torch.randint(9, (16,))
    engine = engine_of(model, loss, 16)
    engine.sum(x, y)
    assert not engine.own_places


def _dropped_path(output, target):
    kept = output.new_empty(len(output), 1).bernoulli_(0.5).div_(0.5)
    return nn.functional.cross_entropy(output * kept, target, reduction="none")


def _time_of_its_own(output, target):
    time = torch.rand(len(output)).add(0.5).floor()
    return nn.functional.cross_entropy(output, target, reduction="none") * time


def _one_time_for_all(output, target):
    return nn.functional.cross_entropy(output, target, reduction="none") * torch.rand(1)


def _written_into_zeros(output, target):
    whole = torch.zeros(len(output), 12)
    whole[:, :9] = output
    return nn.functional.cross_entropy(whole, target, reduction="none")


def _filled_with_minus_infinity(output, target):
    filled = torch.full((len(output), 1), -1e4)
    return nn.functional.cross_entropy(torch.cat([output, filled], 1), target, reduction="none")


def _scattered(output, target):
    hot = torch.zeros_like(output).scatter(1, target.unsqueeze(1), 1.0)
    return (output - hot).square().sum(1)


def _scan(output, target):
    state = torch.zeros(len(output), 9)
    for _ in range(3):
        state = torch.tanh(output + 0.5 * state)
    return nn.functional.cross_entropy(state, target, reduction="none")


@pytest.mark.parametrize(
    "loss",
    [
        _dropped_path,
        _time_of_its_own,
        _written_into_zeros,
        _filled_with_minus_infinity,
        _scattered,
        _scan,
    ],
)
def test_ordinary_programs_are_shown_to_treat_all_places_alike(loss):
    torch.manual_seed(0)
    engine = engine_of(nn.Linear(4, 9), loss, 16)
    engine.sum(torch.randn(16, 4), torch.randint(9, (16,)))
    assert not engine.own_places


class _Tokens(nn.Module):
    """Tokens of which the first is the same for all records, merged with the batch in a layer."""

    def __init__(self, first=lambda token, records: token.expand(records, 1, 4)):
        super().__init__()
        self.token, self.first = nn.Parameter(torch.randn(1, 1, 4)), first
        self.linear, self.head = nn.Linear(4, 4), nn.Linear(4, 9)

    def forward(self, x):
        x = x.unsqueeze(1).expand(-1, 3, -1)
        tokens = torch.cat([self.first(self.token, len(x)), x], 1)
        hidden = self.linear(tokens.reshape(-1, 4)).reshape(len(x), 4, 4)
        return self.head(hidden.tanh()).sum(1)


class _Windows(nn.Module):
    """Two windows of every record, each with a mask of its own and a learnt bias."""

    def __init__(self, repeat=lambda mask, records: mask.repeat(records, 1)):
        super().__init__()
        self.linear, self.bias = nn.Linear(2, 9), nn.Parameter(torch.randn(9))
        self.register_buffer("mask", torch.randn(2, 9))
        self.repeat = repeat

    def forward(self, x):
        scores = self.linear(x.reshape(-1, 2))
        scores = scores + (self.bias.detach() + self.repeat(self.mask, len(x)))
        return scores.reshape(len(x), 2, 9).logsumexp(1)


def _all_positions_but_the_last(output, target):
    positions = output.reshape(-1, 3, 3)[:, :-1].transpose(1, 2)
    wanted = (target % 3).unsqueeze(1).expand(-1, 2)
    return nn.functional.cross_entropy(positions, wanted, reduction="none").mean(1)


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (_Tokens(), nn.CrossEntropyLoss()),
        (_Windows(), nn.CrossEntropyLoss()),
        (nn.Sequential(nn.Linear(4, 9), nn.Unflatten(1, (3, 3)), nn.Linear(3, 3), nn.Flatten()),
         _all_positions_but_the_last),
    ],
    ids=["a token for all", "windows", "a position without a loss"],
)  # fmt: skip
def test_public_rows_among_those_of_a_record_are_no_matter_of_places(model, loss):
    torch.manual_seed(0)
    engine = engine_of(model, loss, 16)
    engine.sum(torch.randn(16, 4), torch.randint(9, (16,)))
    assert not engine.own_places


def _scaled_by_place(token, records):
    return token.detach() * torch.arange(records).reshape(-1, 1, 1)


def _another_for_the_last(token, records):
    token = token.detach()
    return torch.cat([token.expand(records - 1, 1, 4), 2 * token])


def _of_a_table(token, records):
    return torch.linspace(0, 1, records * 4).reshape(records, 1, 4)


def _drawn_once(token, records):
    return torch.rand(4).expand(records, 1, 4)


def _in_blocks(mask, records):
    return mask.repeat_interleave(records, 0)


def _shifted(mask, records):
    return mask.repeat(records, 1)[torch.arange(2 * records) % (2 * records - 1)]


def _numbered(mask, records):
    return mask.repeat(records, 1) * torch.arange(2 * records).unsqueeze(1)


@pytest.mark.parametrize(
    "model",
    [
        *[_Tokens(f) for f in (_scaled_by_place, _another_for_the_last, _of_a_table, _drawn_once)],
        *[_Windows(f) for f in (_in_blocks, _shifted, _numbered)],
    ],
)
def test_public_rows_that_are_not_the_same_for_all_records_are_seen(model):
    torch.manual_seed(0)
    engine = engine_of(model, nn.CrossEntropyLoss(), 16)
    engine.sum(torch.randn(16, 4), torch.randint(9, (16,)))
    assert engine.own_places


def _one_sign_by_python(output, target):
    sign = 1.0 if float(torch.rand(())) < 0.5 else -1.0
    return nn.functional.cross_entropy(output, target, reduction="none") * sign


def _one_matrix_for_all(output, target):
    mixed = output @ torch.randn(9, 9)
    return nn.functional.cross_entropy(mixed, target, reduction="none")


def _one_signed_time(output, target):
    return nn.functional.cross_entropy(output, target, reduction="none") * torch.randn(())


def _one_sign_of_python(output, target):
    sign = random.choice([-1.0, 1.0])
    return nn.functional.cross_entropy(output, target, reduction="none") * sign


def _one_sign_of_numpy(output, target):
    sign = 1.0 if np.random.rand() < 0.5 else -1.0  # noqa: NPY002
    return nn.functional.cross_entropy(output, target, reduction="none") * sign


SHARED_DRAWS = [
    _one_time_for_all, _one_sign_by_python, _one_matrix_for_all, _one_signed_time,
    _one_sign_of_python, _one_sign_of_numpy,
]  # fmt: skip


@pytest.mark.parametrize("loss", SHARED_DRAWS)
def test_a_draw_for_all_records_of_a_piece_does_not_tell_who_is_in_it(loss):
    """A draw that a piece shares ties its records to each other.

    Without a record others move to other pieces, and to other draws: with three records in pieces
    of two, two of them have one sign with probability 2/3, or always once the third is gone.
    """
    torch.manual_seed(0)
    x, y = 9 * torch.randn(10, 4), torch.randint(9, (10,))
    engine = _InPlace(nn.Linear(4, 9), loss, nw.Clipped(1.0), chunk=4)
    engine.sum(x, y)
    assert engine.own_places
    engine.sum(x, y)

    def total(stay):
        torch.manual_seed(5)
        random.seed(5)
        np.random.seed(5)  # noqa: NPY002
        return torch.cat(
            [g.double().flatten() for g in engine.sum(x[stay], y[stay]).gradients.values()]
        )

    everyone = total(list(range(10)))
    for gone in range(10):
        rest = total([i for i in range(10) if i != gone])
        assert float((everyone - rest).norm()) <= 1.001


@pytest.mark.parametrize("loss", SHARED_DRAWS)
def test_pieces_of_a_loop_by_hand_draw_alike_too(loss):
    torch.manual_seed(0)
    x, y = torch.randn(24, 4), torch.zeros(24, dtype=torch.long)
    plan = nw.Plan(gradients=nw.Clipped(1.0), noise_multiplier=1.0, steps=4, sample_rate=0.9)
    model = nn.Linear(4, 9)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = nw.make_private(model, optimizer, loss, (x, y), plan, chunk=4)
    for inputs, targets in run.loader:
        run.loss(run.model(inputs), targets).backward()
        run.optimizer.step()
    assert run._engine.own_places


@functools.lru_cache(None)
def _looked_up(number):
    return number


def _calls_so_far():
    """A count that nobody can put back."""
    _looked_up(_looked_up.cache_info().currsize)
    return _looked_up.cache_info().currsize


class Counting(nn.Module):
    """Every second call has the other sign; what counts is kept in different places."""

    hidden = itertools.count()

    def __init__(self, kept):
        super().__init__()
        self.layer, self.kept, self.calls = nn.Linear(4, 9), kept, 0
        self.own, self.random = random.Random(3), np.random.default_rng(3)
        self.row = np.zeros(1, [("calls", "i8")])[0].copy()  # a number of numpy's that is written
        self.register_buffer("counted", torch.zeros(()))

    def sign(self):
        if self.kept == "row":
            self.row["calls"] += 1
            return 1.0 if self.row["calls"] % 2 else -1.0
        if self.kept == "attribute":
            self.calls += 1
            return 1.0 if self.calls % 2 else -1.0
        if self.kept == "buffer":
            self.counted += 1
            return 1 - 2 * (self.counted % 2)
        if self.kept == "new attribute":
            self.since = getattr(self, "since", 0) + 1
            return 1.0 if self.since % 2 else -1.0
        if self.kept == "generator":
            return 1.0 if self.own.random() < 0.5 else -1.0
        if self.kept == "numpy":
            return self.random.choice([-1.0, 1.0]).item()
        if self.kept == "class":
            return 1.0 if next(self.hidden) % 2 else -1.0
        return 1.0 if _calls_so_far() % 2 else -1.0

    def forward(self, x):
        h = self.layer(x)
        if "hook" in self.kept:
            return _Turned.apply(h, self)
        return h * self.sign()


class _Turned(torch.autograd.Function):
    """Code of its own in the backward pass, which hands on another tensor by turns."""

    turns = 0

    @staticmethod
    def forward(ctx, h, owner):
        ctx.owner = owner
        return h.clone()

    @staticmethod
    def backward(ctx, g):
        _Turned.turns += 1
        there = (g * 1.0, g * -1.0)
        turns = _calls_so_far() if ctx.owner.kept == "hidden hook" else _Turned.turns
        return there[turns % 2], None


def _summed(engine, by_hand, x, y):
    if not by_hand:
        return engine.sum(x, y).gradients
    engine.losses(engine.forward(x), y).backward()
    found = engine.collect().gradients
    for parameter in engine.model.parameters():
        parameter.grad = None
    return found


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("kept", [
    "attribute", "buffer", "new attribute", "generator", "numpy", "class", "hook", "row"
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:every step of this model is watched")
def test_state_moves_once_a_step_and_all_pieces_see_the_same(kept, by_hand):
    """With a sign by the parity of calls, a record that is left out moved a sum by 3.5."""
    torch.manual_seed(0)
    x, y = 9 * torch.randn(33, 4), torch.zeros(33, dtype=torch.long)
    sums = {}
    for gone in (None, 0, 7, 8, 20, 32):
        model = Counting(kept)
        Counting.hidden, _Turned.turns = itertools.count(), 0
        torch.manual_seed(1)
        nn.init.normal_(model.layer.weight)
        nn.init.zeros_(model.layer.bias)
        engine = _InPlace(model, nn.CrossEntropyLoss(), nw.Clipped(1.0), chunk=4)
        stay = [i for i in range(33) if i != gone]
        for _ in range(3):  # the first finds out what moves
            found = _summed(engine, by_hand, x[stay], y[stay])
            sums.setdefault(gone, []).append(
                torch.cat([g.double().flatten() for g in found.values()])
            )
        if kept == "attribute":
            assert model.calls == 3
        if kept == "buffer":
            assert float(model.counted) == 3
        if kept == "row":
            assert model.row["calls"] == 3
        engine.detach()
    for gone in (0, 7, 8, 20, 32):
        for everyone, rest in zip(sums[None], sums[gone], strict=True):
            assert float((everyone - rest).norm()) <= 1.001


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("kept", ["hidden", "hidden hook"])
@pytest.mark.parametrize("chunk", [4, 64])
@pytest.mark.filterwarnings("ignore:every step of this model is watched")
def test_a_program_that_counts_its_calls_out_of_sight_is_refused(kept, by_hand, chunk):
    torch.manual_seed(0)
    x, y = torch.randn(33, 4), torch.zeros(33, dtype=torch.long)
    engine = _InPlace(Counting(kept), nn.CrossEntropyLoss(), nw.Clipped(1.0), chunk=chunk)
    with pytest.raises(nw.UnsupportedModelError, match="counts its calls"):
        _summed(engine, by_hand, x, y)
    engine.detach()


def test_what_is_made_once_and_kept_is_no_difference_between_pieces():
    class Caching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.cached = nn.Linear(4, 9), None

        def forward(self, x):
            if self.cached is None:
                self.cached = torch.arange(4.0)
            return self.layer(x + self.cached)

    engine = _InPlace(Caching(), nn.CrossEntropyLoss(), nw.Clipped(1.0), chunk=4)
    engine.sum(torch.randn(33, 4), torch.zeros(33, dtype=torch.long))
    assert not engine.own_places


def test_a_schedule_that_is_set_between_steps_is_no_difference_between_pieces():
    class Annealed(nn.Module):
        share = 0.0

        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 9)

        def forward(self, x):
            return self.layer(x) * self.share

    model = Annealed()
    engine = _InPlace(model, nn.CrossEntropyLoss(), nw.Clipped(1.0), chunk=4)
    for step in range(4):
        model.share = step / 4
        engine.sum(torch.randn(33, 4), torch.zeros(33, dtype=torch.long))
    assert not engine.own_places
