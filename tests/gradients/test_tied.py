"""Tied embeddings: exact norms without a table for every record, also where the parts cancel.

Why: docs/proofs/rounding.md#tied.
"""

from __future__ import annotations

import pytest
import torch
from gradient_reference import bounded_reference, record_gradients
from torch import nn
from torch.nn import functional

import noisewise as nw
from noisewise.gradients.contractions import LinearContraction, RowsContraction, Target
from noisewise.gradients.contractions.given import CombinedContraction
from noisewise.gradients.contractions.joining import joined
from noisewise.gradients.contractions.tied import TiedContraction

RECORDS, LENGTH, WORDS, WIDTH = 5, 6, 40, 8


class Tied(nn.Module):
    """Two lookups, a layer between, the table as the head; with a bias or without."""

    def __init__(self, bias=False, padding=None):
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH, padding_idx=padding)
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.bias = nn.Parameter(torch.randn(WORDS)) if bias else None

    def forward(self, x):
        h = torch.tanh(self.layer(self.table(x) + self.table(x.flip(1))))
        return functional.linear(h, self.table.weight, self.bias)


def losses(output, target):
    return functional.cross_entropy(output.transpose(1, 2), target, reduction="none").mean(1)


def batch():
    torch.manual_seed(1)
    return torch.randint(WORDS, (RECORDS, LENGTH)) // 3, torch.randint(WORDS, (RECORDS, LENGTH))


@pytest.mark.parametrize("options", [{}, {"bias": True}, {"padding": 2}])
@pytest.mark.parametrize("per", ["model", "layer", "parameter"])
def test_tied_tables_equal_the_reference(options, per, monkeypatch):
    torch.manual_seed(0)
    model, (x, y) = Tied(**options), batch()
    gradients = record_gradients(model, losses, x, y)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
    clip = 0.8 * float(norms.median())

    def refuse(self, start, stop):
        raise AssertionError("a table was made for a record")

    monkeypatch.setattr(CombinedContraction, "instantiate", refuse)
    result = nw.bounded_sum(model, losses, x, y, nw.Clipped(clip, per=per), chunk=RECORDS)
    expected = bounded_reference(
        gradients,
        [group.names for group in result.groups],
        lambda n: (clip / n.clamp_min(1e-12)).clamp_max(1.0),
    )
    for name, value in expected.items():
        error = torch.linalg.vector_norm(result.gradients[name] - value)
        assert error <= 1e-5 * max(float(value.norm()), clip), name


def factors(seed, scale=1.0):
    """A use of each kind, in float32."""
    torch.manual_seed(seed)
    target = Target("table", (WORDS, WIDTH))
    tokens = torch.randint(WORDS, (RECORDS, LENGTH))
    rows = RowsContraction(tokens, scale * torch.randn(RECORDS, LENGTH, WIDTH), target)
    x = torch.randn(RECORDS, LENGTH, WIDTH)
    layer = LinearContraction(x, torch.randn(RECORDS, LENGTH, WORDS), target, None)
    return rows, layer


@pytest.mark.parametrize("seed", range(5))
def test_the_length_is_that_of_both_parts_together(seed):
    (found,) = joined(list(factors(seed, 10.0**seed)))
    assert isinstance(found, TiedContraction)
    exact = CombinedContraction(list(factors(seed, 10.0**seed))).instantiate(0, RECORDS)["table"]
    norm = exact.double().flatten(1).norm(dim=1)
    first, second = found.lengths(False)
    assert (first >= norm * (1 - 1e-5)).all()
    torch.testing.assert_close(first, norm, rtol=1e-4, atol=0.0)
    assert (second <= first).all()


def test_parts_that_cancel_do_not_hide_the_rounding_of_either():
    # The head's part of the first record is taken back by its lookups, up to rounding.
    rows, layer = factors(7)
    layer.cotangent.zero_()
    layer.cotangent[0, 0, rows.tokens[0, 0]] = 1.0
    rows.cotangent.zero_()
    for scale in (1.0, 1e4, 1e8, 1e12):
        layer.x[0, 0] = scale * torch.randn(WIDTH)
        rows.cotangent[0, 0] = -layer.x[0, 0]
        (found,) = joined([rows, layer])
        norm = found.lengths(False).amax(0)
        factor = (1.0 / norm.clamp_min(1e-12)).clamp_max(1.0)
        total = found.sums(factor, None)["table"].double()
        assert float(norm[0]) >= 1e-7 * scale
        assert float(total.norm()) <= 1.001


def test_a_record_moves_a_tied_sum_by_at_most_the_sensitivity():
    torch.manual_seed(0)
    model, (x, y) = Tied(), batch()
    with torch.no_grad():
        model.table.weight.mul_(30.0)
    whole = nw.bounded_sum(model, losses, x, y, nw.Clipped(0.1), chunk=RECORDS)
    for record in range(RECORDS):
        kept = torch.arange(RECORDS) != record
        rest = nw.bounded_sum(model, losses, x[kept], y[kept], nw.Clipped(0.1), chunk=RECORDS)
        moved = [whole.gradients[n].double() - rest.gradients[n] for n in whole.gradients]
        length = float(torch.cat([part.flatten() for part in moved]).norm())
        assert 0.09 <= length <= whole.groups[0].sensitivity
