"""The claims of docs/proofs/rounding.md, one by one."""

import itertools
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from noisewise.gradients import (
    SLACK,
    Clipped,
    GradientEngine,
    InputScaled,
    PerLayer,
    Propagated,
    bounded_sum,
)
from noisewise.gradients.contractions import (
    ConvolutionContraction,
    LinearContraction,
    RowsContraction,
    Target,
    rounding,
)
from noisewise.gradients.contractions.convolution import Convolution
from noisewise.gradients.contractions.given import CombinedContraction
from noisewise.gradients.contractions.gram import squares
from noisewise.gradients.contractions.rounding import (
    ALONE,
    PIECES,
    POSITIONS,
    RECORDS,
    RUN,
    SHARED,
    SHARED_RUN,
    SQUARES_AT_ONCE,
    WIDEST,
    Totals,
    adds_whole,
    gamma,
    kernel_records,
    propagated_slack,
    row_norms,
    spread,
    unit,
)
from noisewise.gradients.lipschitz import Gate, shortened
from noisewise.gradients.sums import FEW, sensitivity_of
from noisewise.nn import BoundedInput, ClipGradient, SpectralConv2d, SpectralLinear

U = unit(torch.float32)
ROOT = Path(__file__).parents[2]


def additions(run):
    """How many additions the sums of a run's kernels pass, one after the other (#runs)."""
    return [run - 1, *range(run - 1, 0, -1)]


def test_the_budget_adds_up():
    """The table of #budget, from the constants of the code."""
    # Nodes above the records of a kernel, a chain, their products, and the additions of its run.
    chain = sum(range(1, RECORDS)) + RECORDS - 1
    single = 4 * U * (chain + RECORDS + RECORDS * sum(additions(RUN)))
    # What a record can do in shared kernels, by their size; all of them together (#layers).
    sizes = [4, 8, 16]
    assert RECORDS % max(sizes) == 0  # so that kernels nest
    runs = {size: 4 * U * size * sum(additions(SHARED_RUN)) for size in sizes}
    whole = {size: SHARED + runs[size] for size in sizes}
    levels = [(4, sizes), (4, sizes[1:]), (8, sizes[2:])]  # records, and kernels they are in
    shared = sum(n * max(whole[c] * SHARED / c for c in around) for n, around in levels)
    squares = single**2 + shared + sum(whole[size] * runs[size] for size in sizes)
    kernels = math.sqrt(squares)
    norms = gamma(SQUARES_AT_ONCE + 2, torch.float32) + 4 * U
    itself = gamma(POSITIONS + PIECES, torch.float32)
    result = 2 * U * FEW
    # Second-order terms are a thousandth of these.
    total = (kernels + norms + itself + result) * 1.001
    assert total <= SLACK
    assert total > 0.8 * SLACK  # and nothing is wasted
    shown = [kernels, norms, itself, result, total - total / 1.001, total]
    assert [f"{1e4 * part:.2f}" for part in shown] == budget_column(1)


def budget_column(column):
    """A column of the table of #budget, without the slack."""
    page = (ROOT / "docs" / "proofs" / "rounding.md").read_text().split("{#budget}")[1]
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| ")]
    cells = [row[column].strip(" *") for row in rows if len(row) == 3]
    return [cell for cell in cells[1:-1] if cell]


def test_the_budget_of_a_layer_by_itself_adds_up():
    """Its right column: shared kernels of at most 16 records (#alone)."""
    runs = 4 * U * 16 * sum(additions(SHARED_RUN))
    norms = gamma(SQUARES_AT_ONCE + 2, torch.float32) + 4 * U
    result = 2 * U * FEW
    total = (ALONE + runs + norms + result) * 1.001
    assert 0.8 * SLACK < total <= SLACK
    shown = [ALONE + runs, norms, result, total - total / 1.001, total]
    assert [f"{1e4 * part:.2f}" for part in shown] == budget_column(2)


@pytest.mark.parametrize("positions", [1, 2, 9, 14, 16, 49, 64, 100, 256, 400, 1024, 1400, 5000])
def test_the_budget_of_a_propagated_bound_adds_up(positions):
    """Whatever slack is stated, kernels of the size that it allows stay within it (#propagated)."""
    for dtype in (torch.float32, torch.float64):
        slack = propagated_slack(positions, dtype)
        assert SLACK <= slack <= WIDEST
        for stated in (SLACK, slack, 2e-3, WIDEST):
            records = kernel_records(positions, 1.0, dtype, alone=True, slack=stated)
            if records == 1 or positions == 1:
                continue  # within the left column
            kernels = unit(dtype) * positions * (3 * records**2 + (records - 1) ** 2)
            runs = 4 * unit(dtype) * records * sum(additions(SHARED_RUN))
            norms = gamma(SQUARES_AT_ONCE + 2, torch.float32) + 4 * U
            assert (kernels + runs + norms + 2 * U * FEW) * 1.001 <= stated


class Convolutions(nn.Module):
    """Layers of 256, 64 and one position, and one that is used twice."""

    def __init__(self):
        super().__init__()
        self.wide = SpectralConv2d(3, 8, 3, padding=1)
        self.again = SpectralConv2d(8, 8, 3, padding=1)
        self.head = SpectralLinear(8 * 64, 3)

    def forward(self, x):
        h = nn.functional.avg_pool2d(self.wide(x), 2)
        return self.head(self.again(self.again(h)).flatten(1))


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize(
    "estimator",
    [
        Propagated(input_norm=1.0),
        InputScaled(input_norm=1.0),
        PerLayer({"wide": Clipped(1.0), "": InputScaled(input_norm=1.0)}),
    ],
    ids=lambda found: type(found).__name__,
)
def test_every_sensitivity_has_room_for_the_kernels_that_were_run(estimator, views, monkeypatch):
    """What kernels really add, seen from outside, against what is stated."""
    torch.manual_seed(0)
    model, ran = Convolutions(), []
    contract = ConvolutionContraction.contract

    def noted(self, x, cotangent, total):
        ran.append((self.weight.name, len(x) // self.views, self.sizes[2]))
        return contract(self, x, cotangent, total)

    monkeypatch.setattr(ConvolutionContraction, "contract", noted)
    shape = (20, 3, 16, 16) if views == 1 else (20, views, 3, 16, 16)
    x, y = torch.randn(shape), torch.arange(20) % 3
    found = bounded_sum(model, nn.CrossEntropyLoss(), x, y, estimator, views=views)
    empty = bounded_sum(model, nn.CrossEntropyLoss(), x[:0], y[:0], estimator, views=views)
    assert found.sensitivities == empty.sensitivities
    assert [g.slack for g in found.groups] == [g.slack for g in empty.groups]
    group_of = {name: group for group in found.groups for name in group.names}
    rest = SLACK - ALONE
    for name, records, positions in ran:
        kernels = U * positions * (3 * records**2 + (records - 1) ** 2)
        assert records == 1 or kernels + rest <= group_of[name].slack
    larger = {group.name for group in found.groups if group.slack > SLACK}
    # Kernels of 8 records pay for 128 or 256 positions, of 4 for 512 of an image of few channels.
    assert sum("again" in name for name in larger) == 1
    propagated = not isinstance(estimator, PerLayer)  # else it is measured
    assert any("wide" in name for name in larger) == propagated
    assert not any("bias" in name or "head" in name for name in larger)
    assert {records for name, records, _ in ran if name == "again.weight"} <= {4, 8, 16}


def test_a_sensitivity_includes_the_slack_that_it_states():
    assert sensitivity_of(2.0) == pytest.approx(2 * (1 + SLACK))
    assert sensitivity_of(2.0, 3e-3) == pytest.approx(2 * 1.003)
    x, y = torch.randn(4, 3, 16, 16), torch.arange(4) % 3
    engine = GradientEngine(Convolutions(), nn.CrossEntropyLoss(), Propagated(input_norm=1.0))
    found, exact = engine.sum(x, y), engine.prepared(x)
    for group in found.groups:
        assert group.sensitivity == sensitivity_of(exact[group.name], group.slack)
        assert group.sensitivity > exact[group.name] * (1 + 0.999 * group.slack)


@pytest.mark.parametrize("positions", [2, 3, 4, 8, 16, 50, 64, 100, 1024])
@pytest.mark.parametrize("exact", [True, False])
def test_a_layer_by_itself_keeps_to_its_share(positions, exact):
    """Errors of three full kernels and of one that lacks a record."""
    ratio = spread(positions) if exact else 1.0
    records = kernel_records(positions, ratio, torch.float32, alone=True)
    among = kernel_records(positions, ratio, torch.float32)
    assert among <= records <= 16
    if records > 1:
        assert U * positions * ratio * (3 * records**2 + (records - 1) ** 2) <= ALONE


@pytest.mark.parametrize("positions", [2, 3, 4, 8, 16, 50, 64, 100, 1024])
@pytest.mark.parametrize("exact", [True, False])
def test_shared_kernels_keep_their_share_of_the_slack(positions, exact):
    ratio = spread(positions) if exact else 1.0
    records = kernel_records(positions, ratio, torch.float32)
    assert records & (records - 1) == 0
    if records > 1:
        assert 4 * U * records**2 * positions * ratio <= SHARED
    assert kernel_records(1, 1.0, torch.float32) == RECORDS


@pytest.mark.parametrize("positions", [2, 100, 10**5, 10**7, 10**9])
def test_shared_kernels_of_float64_keep_their_share_too(positions):
    ratio = spread(positions)
    records = kernel_records(positions, ratio, torch.float64)
    bound = 4 * unit(torch.float64) * records**2 * positions * ratio
    assert records == 1 or bound <= SHARED


@pytest.mark.parametrize("kind", ["by itself", "several uses"])
def test_what_is_measured_is_cut_where_what_is_added_is_cut(kind, monkeypatch):
    """Last bits of a product depend on how many are computed beside it."""
    torch.manual_seed(0)
    weight = Target("w", (150, 150))
    use = LinearContraction(torch.randn(100, 140, 150), torch.randn(100, 140, 150), weight, None)
    assert RECORDS % use.step
    asked = []
    computed = LinearContraction._gradients

    def noted(self, start, stop, pieces=False, into=None):
        asked.append((start, stop))
        return computed(self, start, stop, pieces, into)

    monkeypatch.setattr(LinearContraction, "_gradients", noted)
    contraction = use if kind == "by itself" else CombinedContraction([use, use])
    contraction.lengths(cheap=False)
    measured = asked.copy()
    asked.clear()
    contraction.sums(torch.ones(100, dtype=torch.float64), None)
    assert measured == asked != []


def test_one_record_more_or_less_leaves_all_others_but_one_in_their_places():
    """The coupling of #order: each order of n records comes from one order of n - 1 and a place."""
    for size in range(1, 6):
        found = []
        for order in itertools.permutations(range(size - 1)):
            for place in range(size):
                longer = [*order, None]
                longer[-1], longer[place] = longer[place], size - 1
                found.append(tuple(longer))
                moved = [k for k in range(size - 1) if longer[k] != order[k]]
                assert moved in ([], [place])
        assert sorted(found) == sorted(itertools.permutations(range(size)))


# -- norms ------------------------------------------------------------------------------------


@pytest.mark.parametrize("entries", [1, 7, 512, 513, 3000, 1 << 20])
def test_norms_of_equal_entries_are_right_to_their_share(entries):
    for value in (1.0, 1.37, 0.1, 1.9999999):
        rows = torch.full((2, entries), value)
        exact = math.sqrt(entries) * float(rows[0, 0])
        found = row_norms(rows)
        assert found.dtype == torch.float64
        assert (
            float((found / exact - 1).abs().max()) <= gamma(SQUARES_AT_ONCE + 2, torch.float32) / 2
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_norms_are_never_too_small_however_small_the_entries(dtype):
    for power in range(-45 if dtype == torch.float32 else -320, -10):
        row = torch.full((1, 600), 10.0**power, dtype=torch.float64).to(dtype)
        assert float(row_norms(row)) >= math.sqrt(600) * float(row[0, 0]) * (1 - 4e-5)


def hidden(entries):
    """A record most of whose length a float32 sum of squares never sees: each is half a bit."""
    record = torch.full((1, entries), 2.0**-12)
    record[:, :8] = 1.0
    assert float(torch.linalg.vector_norm(record)) < 0.998 * float(record.double().norm())
    return 8 * record


def entered(record):
    """What a gate with a limit of 1 lets a cotangent be."""
    leaf = torch.zeros_like(record, requires_grad=True)
    gate = Gate(1.0)
    gate.enter((leaf * record).sum(1), leaf, torch.ones(1), gate.guard(leaf * 1))
    return gate.cotangent


def clipped(record):
    x = torch.zeros_like(record, requires_grad=True)
    (ClipGradient(1.0)(x) * record).sum().backward()
    return x.grad


@pytest.mark.parametrize(
    "way",
    [
        lambda record: shortened(record, 1.0),
        lambda record: BoundedInput(record.shape[1:], 1.0)(record),
        lambda record: BoundedInput(record.shape[1:], 1.0, mode="normalise")(record),
        entered,
        clipped,
    ],
)
def test_long_records_are_as_short_as_they_are_said_to_be(way):
    """What was shortened to 1 by float32 norms was 1.0039 long, four times the slack."""
    assert float(way(hidden(2**20)).double().norm()) <= 1 + 2e-5


@pytest.mark.slow
def test_a_long_record_moves_a_propagated_sum_by_its_sensitivity():
    model = nn.Linear(2**20, 2, bias=False)
    nn.init.zeros_(model.weight)
    estimator = Propagated(loss_clip=0.5, input_norm=1.0)
    x, y = hidden(2**20), torch.tensor([0])
    found = bounded_sum(model, nn.CrossEntropyLoss(), x, y, estimator, chunk=1)
    (group,) = found.groups
    assert float(group.gradients["weight"].double().norm()) <= group.sensitivity


def test_norms_that_overflow_are_infinite_and_nan_stays():
    rows = torch.tensor([[1e30, 1.0], [math.inf, 1.0], [math.nan, 1.0]])
    found = row_norms(rows)
    assert found[:2].tolist() == [math.inf, math.inf]
    assert math.isnan(float(found[2]))


# -- what is measured is what is added ----------------------------------------------------------


def linear(records, positions, width, out, generator):
    def draw(n):
        return torch.randn(records, positions, n, generator=generator)

    return LinearContraction(draw(width), draw(out), Target("w", (out, width)), Target("b", (out,)))


def convolution(records, side, generator):
    x = torch.randn(records, 3, side, side, generator=generator)
    cotangent = torch.randn(records, 4, side, side, generator=generator)
    settings = Convolution((3, 3), (1, 1), (1, 1), (1, 1), 1)
    return ConvolutionContraction(
        x, cotangent, settings, 1, Target("w", (4, 3, 3, 3)), Target("b", (4,))
    )


def contractions():
    generator = torch.Generator().manual_seed(0)
    for positions, width in [(1, 30), (2, 64), (3, 40), (4, 200), (8, 64), (16, 64), (20, 4)]:
        yield f"linear {positions}x{width}", linear(5, positions, width, width, generator)
    yield "convolution 2", convolution(5, 2, generator)
    yield "convolution 8", convolution(5, 8, generator)
    tokens = torch.randint(3, (5, 6), generator=generator)
    cotangent = torch.randn(5, 6, 4, generator=generator)
    yield "rows", RowsContraction(tokens, cotangent, Target("w", (3, 4)))


CONTRACTIONS = dict(contractions())


def cancelled(contraction, size):
    """The same with positions of record 0 that cancel to rounding."""
    if isinstance(contraction, RowsContraction):
        contraction.tokens[0] = 1
        half = contraction.cotangent[0, :3]
        half *= size
        contraction.cotangent[0, 3:] = -half
        return contraction
    for tensor, sign in ((contraction.x, -1), (contraction.cotangent, 1)):
        flat = (
            tensor[0] if isinstance(contraction, LinearContraction) else tensor[0].transpose(0, 1)
        )
        half = flat.shape[0] // 2
        if half:
            flat[half : 2 * half] = sign * flat[:half]
            flat[2 * half :] = 0
    contraction.x[0] *= size
    return contraction


@pytest.mark.parametrize("cheap", [False, True])
@pytest.mark.parametrize("size", [1.0, 1e6, 1e12])
@pytest.mark.parametrize("name", sorted(CONTRACTIONS))
def test_no_record_adds_more_than_its_length(name, size, cheap):
    """Alone in its kernel: what `sums` gives is no longer than what `lengths` says."""
    contraction = cancelled(dict(contractions())[name], size)
    lengths = contraction.lengths(cheap)
    norm = lengths.amax(0)
    for record in range(contraction.records):
        scale = torch.zeros(contraction.records, dtype=torch.float64)
        scale[record] = 1.0 / float(norm[record])
        parts = contraction.sums(scale, None).values()
        added = math.sqrt(sum(float(p.double().square().sum()) for p in parts))
        assert added <= 1 + SLACK


@pytest.mark.parametrize("name", sorted(n for n in CONTRACTIONS if n != "rows"))
def test_rounding_of_a_kernel_is_within_its_bound(name):
    """Against float64, for products that all round the same way: #kernels."""
    contraction = CONTRACTIONS[name]
    for value in (1.37, 1.1, 1.7):
        contraction.x.fill_(value)
        contraction.cotangent.fill_(0.77)
        got = contraction.sums(None, None)["w"].double().flatten()
        pairs = zip(contraction.left(0, 5).double(), contraction.right(0, 5).double(), strict=True)
        exact = sum((left @ right.transpose(-1, -2)).flatten() for left, right in pairs)
        products = float(contraction.positions_bound().sum())
        count = contraction.sizes[2] * kernel_records(contraction.sizes[2], 1.0, torch.float32)
        assert float((got - exact).norm()) <= gamma(count + RUN, torch.float32) * products


def exact_lengths(use):
    pairs = zip(use.left(0, use.records), use.right(0, use.records), strict=True)
    products = [left.double() @ right.double().transpose(-1, -2) for left, right in pairs]
    return torch.stack([product.norm() for product in products])


@pytest.mark.parametrize(
    ("positions", "width"), [(2, 96), (16, 200), (64, 300), (128, 300), (140, 600)]
)
def test_gram_lengths_are_never_too_short_and_hardly_too_long(positions, width):
    """Products that all round the same way, and such as have nothing to do with each other."""
    generator = torch.Generator().manual_seed(0)
    use = linear(3, positions, width, width, generator)
    drawn = exact_lengths(use)
    found, products, known = squares(use.left(0, 3), use.right(0, 3))
    length = (found + known).sqrt()
    assert bool((length >= drawn).all())
    assert bool((length <= drawn * (1 + 7e-4)).all())
    assert bool((products >= use.positions_bound() * (1 - 2e-5)).all())
    for value in (1.37, 1.1, 1.7, 1e-20):
        use.x.fill_(value)
        use.cotangent.fill_(0.77 / value)
        found, products, known = squares(use.left(0, 3), use.right(0, 3))
        exact = exact_lengths(use) * (1 - 1e-12)
        assert bool(((found + known).sqrt() >= exact).all())
        assert bool((products >= exact).all())


@pytest.mark.parametrize(("positions", "width"), [(3, 40), (16, 200), (64, 300), (140, 150)])
def test_a_gram_length_is_the_same_in_every_place(positions, width):
    """To the bit: a length decides what a record counts, whoever else is in its kernel."""
    use = linear(21, positions, width, width, torch.Generator().manual_seed(0))
    together = squares(use.left(0, 21), use.right(0, 21))
    for a, b in ((0, 1), (20, 21), (3, 8), (5, 21)):
        alone = squares(use.left(a, b), use.right(a, b))
        for one, all_of_them in zip(alone, together, strict=True):
            assert torch.equal(one, all_of_them[a:b])


def test_a_record_that_cancels_counts_as_its_products_over_the_spread():
    contraction = cancelled(linear(3, 2, 64, 64, torch.Generator().manual_seed(1)), 1e6)
    first, second = contraction.lengths(False)
    products = contraction.positions_bound()
    bias = contraction.biases.double().norm(dim=1)
    told = torch.hypot(products / spread(2), bias)
    torch.testing.assert_close(second, told, rtol=gamma(SQUARES_AT_ONCE, torch.float32), atol=0)
    assert float(second[0]) > float(first[0])
    assert bool((first[1:] > second[1:]).all())


def test_gradients_over_very_many_positions_are_close_to_the_exact_ones():
    """20,000 equal positions: one kernel may be off by 1e-3, pieces are not."""
    contraction = linear(2, 20_000, 3, 3, torch.Generator().manual_seed(0))
    for value in (1.37, 1.1, 1.7):
        contraction.x.fill_(value)
        contraction.cotangent.fill_(1.0)
        exact = 40_000 * float(contraction.x[0, 0, 0])
        got = contraction.sums(None, None)
        error = gamma(POSITIONS + PIECES, torch.float32)
        assert got["w"].double().tolist() == [[pytest.approx(exact, rel=error)] * 3] * 3
        assert got["b"].tolist() == [40_000.0] * 3


# -- adding up --------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [RUN, SHARED_RUN])
def test_a_few_kernels_are_added_in_float32_and_all_others_in_float64(run):
    for kernels in range(1, 3 * run + 2):
        total = Totals(run)
        for number in range(kernels):
            total.add("w", torch.full((3,), 0.1 + number))
        result = total.result()["w"]
        assert result.dtype == (torch.float32 if kernels <= run else torch.float64)
        expected = sum(float(torch.tensor(0.1 + n)) for n in range(kernels))
        assert float(result[0]) == pytest.approx(expected, rel=run * U)


@pytest.mark.parametrize(("positions", "run"), [(1, RUN), (2, SHARED_RUN), (3000, RUN)])
def test_a_use_keeps_to_the_run_of_its_kernels(positions, run):
    """Shared kernels are charged with a shorter one; single gradients count as one product."""
    shared = kernel_records(positions, 1.0, torch.float32)
    assert {1: shared == RECORDS, 2: 1 < shared < RECORDS, 3000: shared == 1}[positions]
    most = run * (RECORDS if shared == 1 else shared)
    for records in (most, most + 1):
        use = linear(records, positions, 2, 3, torch.Generator().manual_seed(0))
        kind = use.sums(None, None)["w"].dtype
        assert kind == (torch.float32 if records == most else torch.float64)


@pytest.mark.parametrize("shape", [(64, 64, 64), (10, 64, 256), (3, 64, 20), (33, 16, 17)])
def test_a_product_is_fused_only_where_it_is_added_as_a_whole(shape):
    rows, products, columns = shape
    left, right = torch.randn(products, rows).t(), torch.randn(products, columns)
    if not adds_whole(left, right):
        pytest.skip("this machine adds the entry in between")
    total = 1e4 * torch.randn(rows, columns)
    assert torch.equal(total.clone().addmm_(left, right), total + left @ right)


def test_a_product_that_meets_the_entry_in_between_is_found_out(monkeypatch):
    """A kernel that adds its products in two halves, the second to the entry."""
    original = torch.Tensor.addmm_

    def halves(total, left, right):
        middle = right.shape[0] // 2
        original(total, left[:, :middle], right[:middle])
        return original(total, left[:, middle:], right[middle:])

    rounding._adds_whole.cache_clear()
    monkeypatch.setattr(torch.Tensor, "addmm_", halves)
    try:
        assert not adds_whole(torch.ones(64, 64).t(), torch.ones(64, 64))
    finally:
        rounding._adds_whole.cache_clear()


# -- gradients that are added without having been measured -----------------------------------


def alone():
    """Contractions whose records share no kernel and are not measured one by one."""
    generator = torch.Generator().manual_seed(0)

    def image(channels, out, shape, settings, views=1):
        x = torch.randn(21 * views, channels, *shape, generator=generator)
        weight = torch.zeros(out, channels // settings.groups, *settings.kernel)
        convolved = (torch.conv1d, torch.conv2d, torch.conv3d)[len(shape) - 1]
        cotangent = torch.randn_like(
            convolved(
                x,
                weight,
                None,
                settings.stride,
                settings.padding,
                settings.dilation,
                settings.groups,
            )
        )
        return ConvolutionContraction(
            x, cotangent, settings, views, Target("w", tuple(weight.shape)), None
        )

    plain = Convolution((3, 3), (1, 1), (1, 1), (1, 1), 1)
    yield "one strip", image(8, 12, (16, 16), plain)
    yield "strips", image(8, 12, (40, 24), plain)
    yield "many strips", image(8, 8, (200, 40), plain)
    yield "views", image(8, 12, (16, 24), plain, views=2)
    yield "few channels", image(3, 12, (32, 32), plain)
    yield "lines too long", image(8, 8, (2, 300), plain)
    uneven = Convolution((3, 2), (2, 3), (2, 0), (1, 2), 2)
    yield "stride, dilation and groups", image(8, 12, (50, 41), uneven)
    yield "one dimension", image(8, 12, (600,), Convolution((5,), (2,), (3,), (1,), 1))
    solid = Convolution((2, 3, 3), (1, 1, 1), (1, 0, 1), (1, 1, 1), 1)
    yield "three dimensions", image(8, 8, (9, 8, 9), solid)
    yield "dense", linear(21, 300, 200, 180, generator)


BY_ITSELF = dict(alone())


@pytest.mark.parametrize("value", [None, 1.37, 1.1])
@pytest.mark.parametrize("name", sorted(BY_ITSELF))
def test_gradients_by_themselves_are_close_to_the_exact_ones(name, value):
    """In kernels of few positions, whichever kernel is the fastest; equal products drift."""
    contraction = dict(alone())[name] if value else BY_ITSELF[name]
    if value:
        contraction.x.fill_(value)
        contraction.cotangent.fill_(1.0)
    left, right = (side(0, 21).double() for side in (contraction.left, contraction.right))
    exact = torch.matmul(left, right.transpose(-1, -2)).flatten(1)
    products = contraction.positions_bound()
    seen = 0
    for start, stop in ((0, 16), (16, 21)):
        for a, b, found in contraction.close_gradients(start, stop):
            assert a + start == seen
            seen = start + b
            error = (found.double() - exact[start + a : seen]).norm(dim=1)
            allowed = gamma(POSITIONS + PIECES, torch.float32) * products[start + a : seen]
            assert bool((error <= allowed).all())
    assert seen == 21


@pytest.mark.parametrize("name", sorted(BY_ITSELF))
def test_gradients_by_themselves_are_the_same_in_every_place(name):
    """To the bit, also where the last records do not fill a kernel: #positions."""
    contraction = dict(alone())[name]
    rows = contraction.x.shape[0] // contraction.records
    for factor in (contraction.x, contraction.cotangent):
        factor.copy_(factor[:rows].repeat(contraction.records, *[1] * (factor.dim() - 1)))
    found = [part for a in (0, 16) for *_, part in contraction.close_gradients(a, min(a + 16, 21))]
    every = torch.cat(found)
    assert len(every) == 21
    assert torch.equal(every, every[:1].expand_as(every))
