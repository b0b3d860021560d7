"""Rows of one unit give one contribution, bounded as one: equal to a reference, and no further."""

import itertools
import math
import warnings

import pytest
import torch
from adversarial_cases import MODELS, bounded_model, distance, loss_of, records
from gradient_reference import backward_gradients, bounded_reference
from torch import nn

import noisewise as nw
from noisewise.errors import UnsoundError
from noisewise.gradients import FallbackWarning, GradientEngine
from noisewise.gradients.contractions import Contraction
from noisewise.gradients.grouping import partition
from noisewise.gradients.rules import clip_scale
from noisewise.gradients.unit_places import in_units

#: Five units of one to nine rows, in no order.
UNITS = [3, 0, 1, 0, 2, 2, 2, 4, 0, 2, 1, 2, 2, 2, 2, 2]


#: Kinds of contractions of which all others are made; the rest of the zoo is slow.
QUICK = ("dense", "convolution", "embedding", "derived")
NAMES = [
    pytest.param(name, within, marks=() if name in QUICK and within == "mean" else pytest.mark.slow)
    for name in sorted(MODELS)
    for within in ("mean", "sum")
]


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        yield


def batch(name, dtype=torch.float64, rows=16, seed=0):
    torch.manual_seed(seed)
    build, shape, vocabulary = MODELS[name]
    model = build().to(dtype)
    if vocabulary is None:
        x = torch.randn(rows, *shape, dtype=dtype)
    else:
        x = torch.randint(vocabulary, (rows, *shape))
    return model, x, torch.randn(rows, dtype=dtype)


def by_units(gradients, units, within):
    """One gradient for each unit, by a loop."""
    codes = torch.tensor(units)
    found = {}
    for name, rows in gradients.items():
        each = [rows[codes == code] for code in dict.fromkeys(units)]
        found[name] = torch.stack([g.mean(0) if within == "mean" else g.sum(0) for g in each])
    return found


@pytest.mark.parametrize(("name", "within"), NAMES)
def test_a_unit_is_clipped_as_one_in_every_kind_of_model(name, within):
    model, x, y = batch(name)
    loss = loss_of(1.0)
    units = by_units(backward_gradients(model, loss, x, y), UNITS, within)
    sizes = {n: p.numel() for n, p in model.named_parameters()}
    cases = [("model", "clip", 16), ("layer", "automatic", 8), ("parameter", "global", 4)]
    for per, rule, chunk in cases:
        estimator = nw.Clipped(0.7, per=per, rule=rule)
        found = nw.bounded_sum(model, loss, x, y, estimator, UNITS, within=within, chunk=chunk)
        groups = [group.names for group in partition(per, sizes)]
        told = bounded_reference(units, groups, lambda n, r=rule: clip_scale(n, 0.7, r))
        for parameter, expected in told.items():
            torch.testing.assert_close(
                found.gradients[parameter].double(), expected, rtol=1e-6, atol=1e-9
            )
        assert found.records == 5
        assert all(len(norms) == 5 for norms in found.norms.values())


@pytest.mark.parametrize("chunk", [1, 7, 32])
def test_the_size_of_a_piece_does_not_matter(chunk):
    model, x, y = batch("convolution")
    whole = nw.bounded_sum(model, loss_of(1.0), x, y, nw.Clipped(0.3), UNITS)
    parts = nw.bounded_sum(model, loss_of(1.0), x, y, nw.Clipped(0.3), UNITS, chunk=chunk)
    for parameter, expected in whole.gradients.items():
        torch.testing.assert_close(parts.gradients[parameter], expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(parts.norms["model"], whole.norms["model"])


@pytest.mark.parametrize("name", ["dense", "convolution", "embedding", "longer sequence"])
def test_factored_shortens_a_unit_and_looks_at_nobody_else(name):
    model, x, y = batch(name)
    loss = loss_of(1.0)
    units = by_units(backward_gradients(model, loss, x, y), UNITS, "mean")
    codes = torch.tensor(UNITS)
    total = {}
    for index, code in enumerate(dict.fromkeys(UNITS)):
        rows = codes == code
        alone = nw.bounded_sum(
            model, loss, x[rows], y[rows], nw.Factored(0.7), [0] * int(rows.sum())
        )
        for group in alone.groups:
            flat = torch.cat([group.gradients[n].flatten() for n in group.names])
            own = torch.cat([units[n][index].flatten() for n in group.names])
            # The same direction, and no longer than the limit or the gradient itself.
            assert float(flat.norm()) <= min(0.7, float(own.norm())) * (1 + 1e-6)
            torch.testing.assert_close(flat / flat.norm(), own / own.norm(), rtol=1e-6, atol=1e-9)
        for n, g in alone.gradients.items():
            total[n] = total.get(n, 0.0) + g
    together = nw.bounded_sum(model, loss, x, y, nw.Factored(0.7), UNITS)
    for n, g in together.gradients.items():
        torch.testing.assert_close(g, total[n], rtol=1e-9, atol=1e-12)


def test_factored_measures_units_of_several_rows_exactly():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 3)).double()
    x, y = torch.randn(12, 40).double(), torch.randint(3, (12,))
    units = [i // 2 for i in range(12)]
    layers = nw.bounded_sum(model, nn.CrossEntropyLoss(), x, y, nw.Clipped(0.1, per="layer"), units)
    found = nw.bounded_sum(model, nn.CrossEntropyLoss(), x, y, nw.Factored(0.1), units)
    for n, g in found.gradients.items():
        torch.testing.assert_close(g, layers.gradients[n], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("kind", "clip"), [(nw.Propagated, None), (nw.InputScaled, 0.05)])
def test_propagated_bounds_take_the_mean_of_a_units_bounded_rows(kind, clip):
    torch.manual_seed(1)
    model, x = bounded_model(), torch.randn(len(UNITS), 2, 6, 6)
    y, loss, estimator = torch.randint(3, (len(UNITS),)), nn.CrossEntropyLoss(), kind(clip)
    codes = torch.tensor(UNITS)
    found = nw.bounded_sum(model, loss, x, y, estimator, UNITS, chunk=4)
    told = {n: torch.zeros_like(g).double() for n, g in found.gradients.items()}
    for code in set(UNITS):
        rows = codes == code
        alone = nw.bounded_sum(model, loss, x[rows], y[rows], estimator)
        for n, g in alone.gradients.items():
            told[n] += g.double() / int(rows.sum())
        for row in rows.nonzero().flatten().tolist():
            one = nw.bounded_sum(model, loss, x[row : row + 1], y[row : row + 1], estimator)
            assert one.sensitivities == found.sensitivities
    for n, g in found.gradients.items():
        torch.testing.assert_close(g.double(), told[n], rtol=1e-4, atol=1e-7)


AIMED = [
    nw.Clipped(0.7),
    nw.Clipped(0.7, per="layer", rule="automatic"),
    nw.Clipped(0.7, per="parameter", rule="normalise"),
    nw.Factored(0.7),
]


def units_apart(engine, base, y, codes, aimed, generator):
    """By how much a unit of one to five aimed rows moves the sum, over the sensitivity."""
    without = engine.sum(base, y, codes)
    for start in range(0, len(aimed), 5):
        few = 1 + int(torch.randint(5, (), generator=generator))
        rows = torch.stack([record.to(base.dtype) for record in aimed[start : start + few]])
        place = int(torch.randint(len(base) + 1, (), generator=generator))
        # Rows of the unit need not lie side by side.
        order = torch.cat([torch.arange(len(base)), len(base) + torch.arange(len(rows))])
        order = torch.roll(order, place)
        x = torch.cat([base, rows])[order]
        targets = torch.cat([y, y[: len(rows)]])[order]
        ids = torch.cat([codes, torch.full((len(rows),), 99)])[order]
        yield distance(engine.sum(x, targets, ids), without)


@pytest.mark.parametrize(("name", "within"), NAMES)
def test_no_aimed_unit_breaks_a_measured_bound(name, within):
    _, shape, vocabulary = MODELS[name]
    for seed, estimator in enumerate(AIMED):
        generator = torch.Generator().manual_seed(seed)
        model, base, y = batch(name, torch.float32, rows=6, seed=seed)
        engine = GradientEngine(model, loss_of(1.0), estimator, chunk=8, within=within)
        aimed = list(records(shape, vocabulary, torch.float32, generator, base[0]))
        order = torch.randperm(len(aimed), generator=generator)[:25].tolist()
        codes = torch.tensor([0, 1, 1, 2, 2, 2])
        found = list(units_apart(engine, base, y, codes, [aimed[i] for i in order], generator))
        assert len(found) >= 5
        assert all(ratio <= 1 for ratio in found), (estimator, max(found))


@pytest.mark.parametrize("estimator", [nw.Propagated(), nw.InputScaled(0.05)], ids=repr)
def test_no_aimed_unit_breaks_a_propagated_bound(estimator):
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    base, y = torch.randn(6, 2, 6, 6), torch.randint(3, (6,))
    engine = GradientEngine(
        bounded_model(), nn.CrossEntropyLoss(), estimator, chunk=8, within="mean"
    )
    aimed = list(records((2, 6, 6), None, torch.float32, generator, base[0]))
    codes = torch.tensor([0, 1, 1, 2, 2, 2])
    found = list(units_apart(engine, base, y, codes, aimed[::3], generator))
    assert all(ratio <= 1 for ratio in found)


def test_bounding_rows_one_by_one_would_break_the_bound():
    # The twin of the tests above: what a wrong grouping would have done, they would have seen.
    model, x, y = batch("dense", torch.float32)
    x, y = x * 0 + x[:1], y * 0 + 3.0  # sixteen equal rows of one person
    rows = nw.bounded_sum(model, loss_of(1.0), x, y, nw.Clipped(0.7))
    unit = nw.bounded_sum(model, loss_of(1.0), x, y, nw.Clipped(0.7), [0] * 16)

    def length(found):
        return float(torch.cat([g.flatten() for g in found.gradients.values()]).norm())

    assert length(rows) > 10 * rows.groups[0].sensitivity
    assert length(unit) <= unit.groups[0].sensitivity


def test_one_unit_may_hold_half_the_table_and_thousands_of_rows():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    x, y = torch.randn(4100, 4).double() * 3, torch.randint(2, (4100,))
    units = [-1 if i % 2 else i for i in range(400)] + [-1] * 3700
    loss = nn.CrossEntropyLoss()
    found = nw.bounded_sum(model, loss, x, y, nw.Clipped(0.05), units)
    codes = torch.tensor(units)
    total = 0.0
    for code in set(units):
        rows = codes == code
        value = nn.functional.cross_entropy(model(x[rows]), y[rows])
        parts = torch.autograd.grad(value, list(model.parameters()))
        flat = torch.cat([g.flatten() for g in parts])
        total = total + flat * min(1.0, 0.05 / float(flat.norm()))
    flat = torch.cat([g.flatten() for g in found.gradients.values()])
    torch.testing.assert_close(flat, total, rtol=1e-8, atol=1e-10)
    rest = codes != -1
    without = nw.bounded_sum(model, loss, x[rest], y[rest], nw.Clipped(0.05), codes[rest])
    assert distance(found, without) <= 1
    assert found.records == 201


def test_a_row_that_is_no_number_counts_nothing_and_the_unit_stays():
    model, x, y = batch("dense")
    spoiled = x.clone()
    spoiled[4, 0] = math.nan  # of the unit with nine rows
    found = nw.bounded_sum(model, loss_of(1.0), spoiled, y, nw.Clipped(1e9), UNITS)
    gradients = backward_gradients(model, loss_of(1.0), x, y)
    for n, g in gradients.items():
        kept = g.clone()
        kept[4] = 0.0
        told = by_units({n: kept}, UNITS, "mean")[n].sum(0)
        torch.testing.assert_close(found.gradients[n].double(), told, rtol=1e-6, atol=1e-9)
    assert int(found.nonfinite) == 0
    spoiled[0] = math.inf  # the only row of its unit
    assert int(nw.bounded_sum(model, loss_of(1.0), spoiled, y, nw.Clipped(), UNITS).nonfinite) == 1


def test_a_loop_by_hand_gives_the_same_sum_and_outputs_in_the_order_of_the_rows():
    model, x, _ = batch("dense", torch.float32)
    loss, codes = nn.MSELoss(), torch.tensor(UNITS)
    targets = torch.randn(len(UNITS), 3)
    engine = GradientEngine(model, loss, nw.Clipped(0.2), chunk=8, within="mean")
    whole = engine.sum(x, targets, codes)
    output = engine.forward(x, codes)
    torch.testing.assert_close(output.detach(), model(x).detach())
    engine.losses(output, targets).backward()
    found = engine.collect()
    engine.detach()
    for n, g in whole.gradients.items():
        torch.testing.assert_close(found.gradients[n], g)
    assert found.records == 5


def test_views_of_rows_of_units():
    model, x, y = batch("dense")
    two = torch.stack([x, x + 0.5], 1)
    found = nw.bounded_sum(model, loss_of(1.0), two, y, nw.Clipped(0.7), UNITS, views=2)
    told = by_units(backward_gradients(model, loss_of(1.0), (two,), y, 2), UNITS, "mean")
    told = bounded_reference(told, [tuple(told)], lambda n: clip_scale(n, 0.7, "clip"))
    for n, g in told.items():
        torch.testing.assert_close(found.gradients[n].double(), g, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "estimator",
    [
        nw.PerLayer({"0": nw.Clipped(0.4), "": nw.Factored(0.7)}),
        nw.PerLayer({"0": nw.Factored(0.3), "": nw.Clipped(0.7, rule="automatic")}),
    ],
    ids=["clipped and factored", "factored and clipped"],
)
@pytest.mark.parametrize("within", ["mean", "sum"])
def test_no_aimed_unit_breaks_bounds_that_differ_by_layer(estimator, within):
    generator = torch.Generator().manual_seed(0)
    model, base, y = batch("dense", torch.float32, rows=6)
    engine = GradientEngine(model, loss_of(1.0), estimator, chunk=8, within=within)
    aimed = list(records(MODELS["dense"][1], None, torch.float32, generator, base[0]))
    codes = torch.tensor([0, 1, 1, 2, 2, 2])
    found = list(units_apart(engine, base, y, codes, aimed[::2], generator))
    assert all(ratio <= 1 for ratio in found), max(found)


@pytest.mark.parametrize("estimator", [nw.Clipped(0.7), nw.Factored(0.7)], ids=repr)
def test_no_aimed_unit_breaks_a_bound_with_views(estimator):
    """Rows times views: a unit is still one."""
    generator = torch.Generator().manual_seed(0)
    model, base, y = batch("dense", torch.float32, rows=6)
    engine = GradientEngine(model, loss_of(1.0), estimator, chunk=8, views=2, within="mean")
    aimed = list(records(MODELS["dense"][1], None, torch.float32, generator, base[0]))
    codes = torch.tensor([0, 1, 1, 2, 2, 2])
    pairs = [torch.stack([one, two]) for one, two in zip(aimed, aimed[::-1], strict=True)]
    two = torch.stack([base, base + 0.5], 1)
    found = list(units_apart(engine, two, y, codes, pairs[::2], generator))
    assert all(ratio <= 1 for ratio in found), max(found)


# ------------------------------------------------------------------------------ refusals


def test_what_cannot_be_bounded_by_units_is_refused_by_name():
    model, x, y = batch("dense")
    for estimator in (nw.Propagated(), nw.InputScaled()):
        with pytest.raises(UnsoundError, match=type(estimator).__name__):
            nw.bounded_sum(model, loss_of(1.0), x, y, estimator, UNITS, within="sum")
    with pytest.raises(UnsoundError, match="BatchMaxScaled"):
        nw.bounded_sum(model, loss_of(1.0), x, y, nw.BatchMaxScaled(study=True), UNITS)
    with pytest.raises(ValueError, match="within"):
        nw.bounded_sum(model, loss_of(1.0), x, y, nw.Clipped(), UNITS, within="median")

    class Own(Contraction):
        pass

    with pytest.raises(nw.UnsupportedModelError, match="Own"):
        Own.grouped(Own.__new__(_concrete(Own)), 2)


def _concrete(kind):
    kind.__abstractmethods__ = frozenset()
    return kind


def test_an_engine_for_units_bounds_no_row_by_itself():
    model, x, y = batch("dense")
    engine = GradientEngine(model, loss_of(1.0), nw.Clipped(), within="mean")
    with pytest.raises(UnsoundError, match="unit"):
        engine.sum(x, y)
    with pytest.raises(UnsoundError, match="unit"):
        engine.forward(x)
    engine.discard()
    with pytest.raises(ValueError, match="16 rows"):
        engine.sum(x, y, torch.zeros(3))
    with pytest.raises(ValueError, match="16 rows"):
        nw.bounded_sum(model, loss_of(1.0), x, y, nw.Clipped(), UNITS[:-1])


# ------------------------------------------------------------------------------ places


@pytest.mark.parametrize("size", [1, 6, 7, 16])
def test_every_row_has_one_slot_beside_its_unit_and_pieces_have_one_size(size):
    codes = torch.tensor(UNITS)
    seen = []
    for found in in_units(codes, size):
        assert len(found.places) == size
        for owner, rows in zip(found.owners, found.places.reshape(-1, found.each), strict=True):
            own = rows[rows >= 0]
            assert (owner < 0) == (len(own) == 0)
            assert bool((codes[own] == owner).all())
            assert len(own) == 0 or rows[0] >= 0
            seen.extend(own.tolist())
    assert sorted(seen) == list(range(len(UNITS)))


def test_a_unit_left_out_moves_no_unit_with_another_number_of_rows():
    # What the coupling of docs/proofs/units.md#places needs: places within a class of sizes
    # depend on the units of that class alone.
    def where(codes):
        found = {}
        for piece, held in enumerate(in_units(codes, 8)):
            for slot, owner in enumerate(held.owners.tolist()):
                if owner >= 0:
                    found.setdefault((held.each, owner), []).append((piece, slot))
        return found

    counts = (1, 3, 1, 2, 1, 2)
    codes = torch.cat([torch.full((n,), i) for i, n in enumerate(counts)])
    whole = where(codes)
    for gone, n in enumerate(counts):
        kept = codes[codes != gone]
        _, renumbered = torch.unique(kept, return_inverse=True)
        names = [i for i in range(len(counts)) if i != gone]
        for (each, owner), slots in where(renumbered).items():
            if counts[names[owner]] != n:
                assert [s for _, s in whole[each, names[owner]]] == [s for _, s in slots]


def test_contributions_of_units_add_up():
    model, x, y = batch("reused")
    codes = torch.tensor(UNITS)
    whole = nw.bounded_sum(model, loss_of(1.0), x, y, nw.Clipped(0.3), UNITS)
    for split in itertools.islice(itertools.combinations(range(5), 2), 4):
        mine = torch.isin(codes, torch.tensor(split))
        parts = [
            nw.bounded_sum(model, loss_of(1.0), x[m], y[m], nw.Clipped(0.3), codes[m])
            for m in (mine, ~mine)
        ]
        joined = parts[0].add(parts[1])
        for n, g in whole.gradients.items():
            torch.testing.assert_close(joined.gradients[n], g, rtol=1e-9, atol=1e-12)
