"""Groups, schedules, refusals, loops of the user's own, and types."""

import pytest
import torch
from gradient_reference import bounded_reference, record_gradients
from hypothesis import given, settings, strategies as st
from model_examples import squared
from torch import nn

import noisewise as nw
from noisewise.gradients import GradientEngine, GroupSpec
from noisewise.gradients.grouping import partition

CROSS_ENTROPY = nn.CrossEntropyLoss()


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def batch(records=6):
    torch.manual_seed(1)
    return torch.randn(records, 4), torch.randint(3, (records,))


def clip(limit):
    return lambda norm: (limit / norm).clamp_max(1.0)


# -- exactness over drawn shapes and options ------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_convolutions_of_any_setting_are_exact(data):
    dimensions = data.draw(st.integers(1, 3))
    draw = lambda low, high: tuple(data.draw(st.integers(low, high)) for _ in range(dimensions))  # noqa: E731
    groups = data.draw(st.integers(1, 2))
    kind = data.draw(st.sampled_from(["conv", "transposed"]))
    kernel, stride, dilation = draw(1, 3), draw(1, 3), draw(1, 2)
    channels = (groups * data.draw(st.integers(1, 3)), groups * data.draw(st.integers(1, 3)))
    bias = data.draw(st.booleans())
    common = {"stride": stride, "dilation": dilation, "groups": groups, "bias": bias}
    size = tuple(d * (k - 1) + 1 + e for d, k, e in zip(dilation, kernel, draw(0, 3), strict=True))
    if kind == "conv":
        cls = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1]
        layer = cls(*channels, kernel, padding=draw(0, 2), **common)
    else:
        cls = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dimensions - 1]
        layer = cls(*channels, kernel, **common)
    model = nn.Sequential(layer, nn.Flatten()).double()
    x = torch.randn(3, channels[0], *size, dtype=torch.float64)
    y = torch.randn(3, dtype=torch.float64)
    per = data.draw(st.sampled_from(["model", "parameter"]))
    gradients = record_gradients(model, squared, x, y)
    result = nw.bounded_sum(model, squared, x, y, nw.Clipped(0.7, per=per))
    expected = bounded_reference(gradients, [g.names for g in result.groups], clip(0.7))
    for name, value in expected.items():
        torch.testing.assert_close(result.gradients[name], value, rtol=1e-7, atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    leading=st.lists(st.integers(1, 5), max_size=2),
    sizes=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    records=st.integers(1, 5),
    bias=st.booleans(),
    estimator=st.sampled_from(
        [nw.Clipped(0.3), nw.Clipped(0.3, per="parameter"), nw.Factored(0.3)]
    ),
)
def test_linear_layers_of_any_shape_are_exact(leading, sizes, records, bias, estimator):
    model = nn.Sequential(nn.Linear(*sizes, bias=bias), nn.Flatten()).double()
    x = torch.randn(records, *leading, sizes[0], dtype=torch.float64)
    y = torch.randn(records, dtype=torch.float64)
    gradients = record_gradients(model, squared, x, y)
    result = nw.bounded_sum(model, squared, x, y, estimator)
    for group in result.groups:
        factor = (0.3 / result.norms[group.name]).clamp_max(1.0)
        for name in group.names:
            value = torch.einsum("b,b...->...", factor, gradients[name])
            torch.testing.assert_close(group.gradients[name], value, rtol=1e-7, atol=1e-9)


# -- groups ---------------------------------------------------------------------------------


def test_blocks_gather_prefixes_and_each_has_its_threshold():
    model, (x, y) = mlp(), batch()
    blocks = {"body": ["0"], "head weight": ["2.weight"], "rest": [""]}
    limits = {"body": 0.1, "head weight": 0.2, "rest": 0.3}
    result = nw.bounded_sum(model, CROSS_ENTROPY, x, y, nw.Clipped(limits, per=blocks))
    assert [g.name for g in result.groups] == ["body", "head weight", "rest"]
    assert [g.names for g in result.groups] == [("0.weight", "0.bias"), ("2.weight",), ("2.bias",)]
    gradients = record_gradients(model, nn.CrossEntropyLoss(reduction="none"), x, y)
    for group in result.groups:
        limit = limits[group.name]
        assert group.sensitivity == pytest.approx(limit * 1.001)
        expected = bounded_reference(gradients, [group.names], clip(limit))
        for name, value in expected.items():
            torch.testing.assert_close(group.gradients[name], value, rtol=1e-4, atol=1e-6)


def test_partition_names_layers_and_sizes():
    sizes = {"a.weight": 6, "a.bias": 2, "scale": 1}
    assert partition("layer", sizes) == (
        GroupSpec("a", ("a.weight", "a.bias"), 8),
        GroupSpec("(model)", ("scale",), 1),
    )
    assert [g.name for g in partition("parameter", sizes)] == list(sizes)


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (lambda: nw.Clipped(0.0), "clip"),
        (lambda: nw.Clipped(float("nan")), "clip"),
        (lambda: nw.Clipped(1.0, per="row"), "per"),
        (lambda: nw.Clipped(1.0, rule="soft"), "rule"),
        (lambda: nw.Factored(-1.0), "clip"),
        (lambda: nw.Propagated(loss_clip=0.0), "loss_clip"),
        (lambda: nw.Schedule([]), "stages"),
        (lambda: nw.Schedule([(0.5, nw.Clipped())]), "fractions"),
        (lambda: nw.Schedule([(0.0, nw.Clipped()), (0.0, nw.Clipped())]), "ascending"),
    ],
)
def test_impossible_settings_are_refused_where_they_are_made(estimator, message):
    with pytest.raises(ValueError, match=message):
        estimator()


def test_thresholds_must_fit_the_groups():
    model, (x, y) = mlp(), batch()
    with pytest.raises(ValueError, match="3 thresholds for 2 groups"):
        nw.bounded_sum(model, CROSS_ENTROPY, x, y, nw.Clipped([1.0, 1.0, 1.0], per="layer"))
    with pytest.raises(ValueError, match="one threshold for each"):
        nw.bounded_sum(model, CROSS_ENTROPY, x, y, nw.Clipped({"0": 1.0}, per="layer"))
    with pytest.raises(ValueError, match="belongs to no block"):
        nw.bounded_sum(model, CROSS_ENTROPY, x, y, nw.Clipped(1.0, per={"a": ["0"]}))
    with pytest.raises(ValueError, match="hold no trainable"):
        nw.bounded_sum(model, CROSS_ENTROPY, x, y, nw.Clipped(1.0, per={"a": [""], "b": ["9"]}))


def test_a_schedule_follows_progress():
    model, (x, y) = mlp(), batch()
    first, second = nw.Clipped(0.1), nw.Clipped(0.1, rule="global")
    engine = GradientEngine(model, CROSS_ENTROPY, nw.Schedule([(0.0, first), (0.6, second)]))
    for progress, estimator in ((0.0, first), (0.59, first), (0.6, second), (1.0, second)):
        engine.progress = progress
        expected = nw.bounded_sum(model, CROSS_ENTROPY, x, y, estimator)
        result = engine.sum(x, y)
        for name, value in expected.gradients.items():
            torch.testing.assert_close(result.gradients[name], value)


# -- refusals -------------------------------------------------------------------------------


class BatchStatistics(nn.Module):
    def forward(self, x):
        return x - x.mean(0, keepdim=True)


class Flattening(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x.reshape(-1, 3)).reshape(x.shape[0], -1)


class FirstRecord(nn.Module):
    """Every record's output depends on the first record: its sizes would not tell."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return x[:, :2] + self.layer(x[:1])


class PositionsFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x.transpose(0, 1)).transpose(0, 1).flatten(1)


@pytest.mark.parametrize(
    ("model", "shape", "message"),
    [
        (nn.Sequential(nn.BatchNorm1d(8)), (8, 5), r"BatchNorm1d at .*GroupNorm\(8, 8\).*nn.fix"),
        (nn.InstanceNorm2d(8, True, track_running_stats=True), (8, 5, 5), "running statistics"),
        (nn.Sequential(nn.Linear(4, 3), BatchStatistics()), (4,), "mixes records"),
        (FirstRecord(), (3,), "mixes records"),
        (nn.LazyLinear(3), (4,), "not initialised"),
        (nn.DataParallel(nn.Linear(4, 3)), (4,), "wrapper.module"),
        (nn.Embedding(4, 3, max_norm=1.0), None, "max_norm"),
        (nn.Linear(4, 3).requires_grad_(False), (4,), "no parameter that learns"),
    ],
)  # fmt: skip
def test_what_mixes_records_is_refused_with_the_way_out(model, shape, message):
    x = torch.zeros(6, 3, dtype=torch.long) if shape is None else torch.randn(6, *shape)
    with pytest.raises(nw.UnsupportedModelError, match=message):
        nw.bounded_sum(model, squared, x, torch.randn(6), nw.Clipped(1.0))


def test_fixed_models_are_accepted():
    model = nw.nn.fix(nn.Sequential(nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.Flatten()))
    result = nw.bounded_sum(
        model, squared, torch.randn(4, 2, 5, 5), torch.randn(4), nw.Clipped(1.0)
    )
    assert result.records == 4


@pytest.mark.parametrize("length", [3, 5, 6])
def test_a_table_of_positions_as_long_as_the_batch_is_not_taken_for_records(length):
    """Six positions and six records: the first axis alone would not tell."""

    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(length, 4), nn.Linear(4, 3)

        def forward(self, x):
            return self.head((x + self.table(torch.arange(length))).mean(1))

    torch.manual_seed(0)
    model, x, y = Positions(), torch.randn(length, length, 4), torch.randint(3, (length,))
    gradients = record_gradients(model, nn.CrossEntropyLoss(reduction="none"), x, y)
    result = nw.bounded_sum(model, CROSS_ENTROPY, x, y, nw.Clipped(0.1))
    expected = bounded_reference(gradients, [result.groups[0].names], clip(0.1))
    for name, value in expected.items():
        torch.testing.assert_close(result.gradients[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda o, t: (o - t[:, None]).square().mean(), "one value per record"),
        (lambda o, t: (o - t[:, None]).square(), "one value per record"),
        (nn.functional.kl_div, "reduces over the batch"),
        (lambda o, t: (o - o.mean(0)).square().sum(1), "mixes records"),
    ],
)
def test_a_loss_over_the_batch_is_refused(loss, message):
    with pytest.raises(nw.UnsupportedModelError, match=message):
        nw.bounded_sum(mlp(), loss, batch()[0], torch.randn(6), nw.Clipped(1.0))


def test_batches_must_agree_in_length():
    x, y = batch()
    with pytest.raises(ValueError, match="x has 6 records, but y has 5"):
        nw.bounded_sum(mlp(), CROSS_ENTROPY, x, y[:5], nw.Clipped(1.0))


def test_arrays_are_refused_with_the_way_out():
    x, y = batch()
    with pytest.raises(TypeError, match=r"torch\.from_numpy"):
        nw.bounded_sum(mlp(), CROSS_ENTROPY, x.numpy(), y, nw.Clipped(1.0))


def test_lipschitz_estimators_need_a_bound_on_the_input():
    x, y = batch()
    with pytest.raises(nw.UnsupportedModelError, match="BoundedInput"):
        nw.bounded_sum(mlp(), CROSS_ENTROPY, x, y, nw.Propagated())
    promised = nw.bounded_sum(mlp(), CROSS_ENTROPY, x, y, nw.Propagated(input_norm=1.0))
    assert all(group.sensitivity > 0 for group in promised.groups)


def test_attention_is_refused_for_lipschitz_estimators():
    model = nn.Sequential(
        nw.nn.BoundedInput((5, 8), 1.0),
        nn.TransformerEncoderLayer(8, 2, 8, batch_first=True),
        nn.Flatten(),
    )
    y = torch.randint(40, (4,))
    with pytest.raises(nw.UnsupportedModelError, match=r"not Lipschitz.*Clipped"):
        nw.bounded_sum(model, CROSS_ENTROPY, torch.randn(4, 5, 8), y, nw.InputScaled())


def test_a_penalty_on_weights_in_the_loss_counts_for_every_record():
    model, (x, y) = mlp(), batch()

    def regularised(output, target):
        penalty = model[0].weight.square().sum()
        return nn.functional.cross_entropy(output, target, reduction="none") + penalty

    gradients = record_gradients(model, nn.CrossEntropyLoss(reduction="none"), x, y)
    gradients["0.weight"] = gradients["0.weight"] + 2 * model[0].weight.detach()
    result = nw.bounded_sum(model, regularised, x, y, nw.Clipped(0.1))
    expected = bounded_reference(gradients, [result.groups[0].names], clip(0.1))
    for name, value in expected.items():
        torch.testing.assert_close(result.gradients[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("model", [Flattening(), PositionsFirst()])
@pytest.mark.parametrize("per", ["model", "layer"])
def test_records_merged_with_other_axes_are_exact(model, per):
    x, y = torch.randn(6, 5, 3), torch.randn(6)
    gradients = record_gradients(model, squared, x, y)
    result = nw.bounded_sum(model, squared, x, y, nw.Clipped(0.5, per=per))
    expected = bounded_reference(gradients, [g.names for g in result.groups], clip(0.5))
    for name, value in expected.items():
        torch.testing.assert_close(result.gradients[name], value, rtol=1e-4, atol=1e-6)


# -- a loop of the user's own ---------------------------------------------------------------


def test_a_loop_of_ones_own_gives_the_same_sum():
    model, (x, y) = mlp(), batch()
    expected = nw.bounded_sum(model, CROSS_ENTROPY, x, y, nw.Clipped(0.1, per="layer"))
    engine = GradientEngine(model, CROSS_ENTROPY, nw.Clipped(0.1, per="layer"))
    loss = engine.losses(engine.forward(x), y)
    assert float(loss) == pytest.approx(float(CROSS_ENTROPY(mlp()(x), y)))
    (7 * loss).backward()  # a factor is ignored
    result = engine.collect()
    engine.detach()
    for name, value in expected.gradients.items():
        torch.testing.assert_close(result.gradients[name], value)
    assert all(p.grad is None for p in model.parameters())


def test_mistakes_in_a_loop_are_told():
    model, (x, y) = mlp(), batch()
    engine = GradientEngine(model, CROSS_ENTROPY, nw.Clipped(0.1))
    with pytest.raises(RuntimeError, match="no batch is open"):
        engine.collect()
    loss = engine.losses(engine.forward(x), y)
    with pytest.raises(RuntimeError, match="not collected"):
        engine.forward(x)
    loss.backward(retain_graph=True)
    with pytest.raises(nw.UnsupportedModelError, match="backward twice"):
        loss.backward()
    engine.discard()
    with torch.no_grad():
        model(x)  # evaluation beside training is plain
    engine.detach()


# -- types ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_models_are_bounded_in_float32(dtype):
    model, (x, y) = mlp().to(dtype), batch()
    result = nw.bounded_sum(model, CROSS_ENTROPY, x.to(dtype), y, nw.Clipped(0.1))
    whole = torch.cat([g.float().flatten() for g in result.gradients.values()])
    assert float(whole.norm()) <= 6 * 0.1 * 1.01
    assert all(g.dtype == torch.float32 for g in result.gradients.values())


def test_autocast_does_not_reach_the_sums():
    model, (x, y) = mlp(), batch()
    expected = nw.bounded_sum(model, CROSS_ENTROPY, x, y, nw.Clipped(0.1))
    with torch.autocast("cpu", torch.bfloat16):
        result = nw.bounded_sum(model, CROSS_ENTROPY, x, y, nw.Clipped(0.1))
    for name, value in expected.gradients.items():
        assert result.gradients[name].dtype == torch.float32
        torch.testing.assert_close(result.gradients[name], value, rtol=0.1, atol=0.01)


def test_standardised_layers_are_bounded_in_the_effective_weight():
    torch.manual_seed(0)
    model = nn.Sequential(nw.nn.StandardisedLinear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    plain = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    plain.load_state_dict(model.state_dict())
    with torch.no_grad():
        plain[0].weight.copy_(model[0].effective_weight())
    x, y = batch()
    engine = GradientEngine(model, CROSS_ENTROPY, nw.Clipped(0.1))
    result, expected = engine.sum(x, y), nw.bounded_sum(plain, CROSS_ENTROPY, x, y, nw.Clipped(0.1))
    for name, value in expected.gradients.items():
        torch.testing.assert_close(result.gradients[name], value, rtol=1e-4, atol=1e-6)
    pulled = engine.pull_back(result.gradients)
    torch.testing.assert_close(pulled["0.weight"], model[0].pull_back(result.gradients["0.weight"]))


def test_sums_of_parts_can_be_added():
    model, (x, y) = mlp(), batch()
    engine = GradientEngine(model, CROSS_ENTROPY, nw.Clipped(0.1, per="layer"))
    whole, joined = engine.sum(x, y), engine.sum(x[:2], y[:2]).add(engine.sum(x[2:], y[2:]))
    assert joined.records == 6
    for name, value in whole.gradients.items():
        torch.testing.assert_close(joined.gradients[name], value)
    other = GradientEngine(model, CROSS_ENTROPY, nw.Clipped(0.2, per="layer")).sum(x, y)
    with pytest.raises(ValueError, match="same estimator"):
        whole.add(other)


def test_a_computed_first_state_is_not_lost():
    # A parameter that reaches a recurrent layer other than by way of the batch's rows.
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.start = nn.Parameter(torch.randn(1, 6, 5))
            self.recurrent, self.head = nn.GRU(4, 5, batch_first=True), nn.Linear(5, 3)

        def forward(self, x):
            return self.head(self.recurrent(x, self.start.tanh())[0].mean(1))

    x, y = torch.randn(6, 7, 4), torch.randint(3, (6,))
    with pytest.raises(nw.UnsupportedModelError, match="would be lost"):
        nw.bounded_sum(Scaled(), nn.CrossEntropyLoss(), x, y, nw.Clipped(1.0), chunk=6)


@pytest.mark.parametrize("way", ["expand", "repeat", "expand_as", "unsqueezed"])
def test_a_parameter_may_be_spread_over_any_axis_of_the_batch(way):
    class Start(nn.Module):
        def __init__(self):
            super().__init__()
            self.start = nn.Parameter(
                torch.randn(5) if way == "unsqueezed" else torch.randn(1, 1, 5)
            )
            self.recurrent, self.head = nn.GRU(4, 5, batch_first=True), nn.Linear(5, 3)

        def forward(self, x):
            rows = x.shape[0]
            start = {
                "expand": lambda: self.start.expand(-1, rows, -1),
                "repeat": lambda: self.start.repeat(1, rows, 1),
                "expand_as": lambda: self.start.expand_as(torch.zeros(1, rows, 5)),
                "unsqueezed": lambda: self.start.expand(1, rows, 5),
            }[way]()
            return self.head(self.recurrent(x, start.contiguous())[0].mean(1))

    torch.manual_seed(0)
    model, x, y = Start(), torch.randn(6, 7, 4), torch.randint(3, (6,))
    found = nw.bounded_sum(model, nn.CrossEntropyLoss(), x, y, nw.Clipped(1e9), chunk=6).gradients
    nn.functional.cross_entropy(model(x), y, reduction="sum").backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(found[name], parameter.grad, atol=1e-5), name
