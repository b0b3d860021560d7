"""A fourth round of programs that mix records, written without a look at the rules or at the others.

`FORWARD` stands between two layers, `LOSSES` in place of a loss, and `LATE` mixes from the fifth call
on: a proof of the first calls must not speak for them. All were refused at first but the string that
lies about its equality.
"""

# ruff: noqa: E501

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import noisewise as nw
from noisewise.errors import UnsupportedModelError
from noisewise.gradients import GradientEngine

RECORDS = 8


class MyInt(int):
    pass


class MyInt2(int):
    def __hash__(self):
        return 5

    def __eq__(self, other):
        return True


class MyStr(str):
    def __hash__(self):
        return 5

    def __eq__(self, other):
        return True


def each(o, y):
    return functional.cross_entropy(o, y, reduction="none")


FORWARD = {
    "ln_over_batch": lambda h: functional.layer_norm(h.t(), (h.shape[0],)).t(),
    "whiten_cov": lambda h: h @ torch.cov(h.t()),
    "corrcoef": lambda h: h @ torch.corrcoef(h.t()).nan_to_num(),
    "cdist": lambda h: h + torch.cdist(h, h).sum(1, keepdim=True),
    "softmax0": lambda h: h.softmax(0),
    "cumsum0": lambda h: h.cumsum(0),
    "cummax0": lambda h: h.cummax(0).values,
    "lcse0": lambda h: h.logcumsumexp(0),
    "sort0": lambda h: h.sort(0).values,
    "argsort_idx": lambda h: h[h[:, 0].argsort()],
    "rank_feature": lambda h: h + h.argsort(0).argsort(0) / 8,
    "minus_first": lambda h: h - h[:1],
    "roll": lambda h: h.roll(1, 0),
    "diff_prepend": lambda h: torch.diff(h, dim=0, prepend=h[:1]),
    "conv_over_batch": lambda h: functional.avg_pool1d(h.t().unsqueeze(0), 3, 1, 1)[0].t(),
    "circpad": lambda h: functional.pad(h.t().unsqueeze(0), (1, 1), mode="circular")[0, :, 2:].t(),
    "groupnorm_batch": lambda h: functional.group_norm(h.unsqueeze(0), 2)[0],
    "fft0": lambda h: torch.fft.fft(h, dim=0).real,
    "fftn": lambda h: torch.fft.fftn(h).real,
    "fft2_default": lambda h: torch.fft.ifft2(torch.fft.fft2(h) * torch.linspace(0, 1, 6)).real,
    "einsum_bc": lambda h: h + torch.einsum("bi,ci->bc", h, h).sum(1, keepdim=True),
    "qr": lambda h: torch.linalg.qr(h)[0],
    "svdvals": lambda h: h * torch.linalg.svdvals(h).max(),
    "pinv": lambda h: torch.linalg.pinv(h).t(),
    "norm_all": lambda h: h / h.norm(),
    "norm_dim0": lambda h: functional.normalize(h, dim=0),
    "sdpa_2d": lambda h: functional.scaled_dot_product_attention(h, h, h),
    "renorm0": lambda h: torch.renorm(h, 2, 1, 1.0),
    "randperm_mixup": lambda h: 0.7 * h + 0.3 * h[torch.randperm(len(h))],
    "quantile0": lambda h: h - h.quantile(0.5, 0),
    "histc": lambda h: h * torch.histc(h, 4)[0],
    "where_any": lambda h: torch.where(h.max() > 0.9, h * 2, h),
    "searchsorted": lambda h: (
        h
        + torch.searchsorted(h[:, 0].sort().values.contiguous(), h[:, 0].contiguous()).unsqueeze(1)
    ),
    "bucket": lambda h: h + torch.bucketize(h, h.detach().flatten().sort().values[::8]) * 1.0,
    "isin": lambda h: h * torch.isin((h * 3).round()[:, :1], (h * 3).round()[:, 1:]).float(),
    "as_strided": lambda h: (
        h.contiguous().as_strided((len(h), 6), (6, 1), 0)
        + h.detach().clone().as_strided((len(h) - 1, 6), (6, 1), 6).sum(0) * 0.1
    ),
    "unfold0": lambda h: functional.pad(h, (0, 0, 1, 0)).unfold(0, 2, 1).sum(-1),
    "viewdtype": lambda h: (
        h * h.detach().clone().view(torch.int32).roll(6).reshape(h.shape).clamp(-2, 2)
    ),
    "t_inplace": lambda h: (h @ h.detach().clone().t_()[:, :6]) if True else h,
    "index_add": lambda h: (
        torch.zeros_like(h).index_add(0, torch.zeros(len(h), dtype=torch.long), h)[:1] + h
    ),
    "scatter_reduce": lambda h: (
        h + torch.zeros(1, 6).scatter_reduce(0, torch.zeros(len(h), 6, dtype=torch.long), h, "amax")
    ),
    "masked_select": lambda h: h * h.masked_select(h > 0).sum(),
    "putacc": lambda h: (
        h
        + torch.zeros(1).put(torch.zeros(h.numel(), dtype=torch.long), h.flatten(), accumulate=True)
    ),
    "segred": lambda h: (
        h + torch.segment_reduce(h.contiguous(), "mean", lengths=torch.tensor([len(h)]), axis=0)
    ),
    "cholesky_ex": lambda h: h * (1 + torch.linalg.cholesky_ex(h.t() @ h)[1]),
    "trace_gram": lambda h: h * torch.trace(h @ h.t()),
    "kron": lambda h: torch.kron(h, h)[:: len(h), ::6] + h,
    "cartesian": lambda h: (
        h + torch.cartesian_prod(h[:, 0], h[:, 1]).reshape(len(h), -1).sum(1, keepdim=True)
    ),
    "combos": lambda h: h * torch.combinations(h[:, 0]).sum(),
    "logdet": lambda h: h * torch.logdet(h.t() @ h + torch.eye(6)),
    "matrix_exp": lambda h: torch.matrix_exp(h @ h.t() / 99) @ h,
    "baddbmm": lambda h: torch.baddbmm(
        h.unsqueeze(0), (h @ h.t()).unsqueeze(0) * 0.1, h.unsqueeze(0)
    )[0],
    "chain_matmul": lambda h: torch.linalg.multi_dot([h, h.t(), h]),
    "fold_back": lambda h: functional.fold(
        functional.unfold(h[None, None], (3, 1), padding=(1, 0)),
        (len(h), 6),
        (3, 1),
        padding=(1, 0),
    )[0, 0],
    "interp": lambda h: functional.interpolate(
        functional.interpolate(h.t()[None], size=4, mode="linear"), size=len(h), mode="linear"
    )[0].t(),
    "gridsample": lambda h: (
        functional.grid_sample(h[None, None], torch.zeros(1, 1, 1, 2), align_corners=True).reshape(
            1, 1
        )
        + h
    ),
}

LOSSES = {
    "expand": lambda o, y: each(o, y).mean().expand(len(y)),
    "balanced": lambda o, y: each(o, y) / torch.bincount(y, minlength=3)[y],
    "unique": lambda o, y: each(o, y) * len(torch.unique(y)),
    "median": lambda o, y: each(o, y) * (each(o, y) > each(o, y).median()),
    "topk": lambda o, y: (lambda v: v * (v >= v.topk(2).values[-1]))(each(o, y)),
    "detsum": lambda o, y: each(o, y) * each(o, y).detach().sum(),
    "ymean": lambda o, y: each(o, y) * y.float().mean(),
    "vicreg": lambda o, y: each(o, y) + torch.cov(o.t()).pow(2).sum(),
    "sortpair": lambda o, y: functional.relu(
        1 - (o.sort(0).values - o.sort(0).values.roll(1, 0))
    ).sum(1),
    "mean_wrong_reduction": lambda o, y: functional.cross_entropy(o, y).unsqueeze(0).repeat(len(y)),
    "ctc": lambda o, y: functional.ctc_loss(
        o.log_softmax(-1).unsqueeze(0).repeat(2, 1, 1),
        (y % 2 + 1).flatten(),
        torch.full((len(y),), 2),
        torch.ones(len(y), dtype=torch.long),
        reduction="none",
    ),
    "triplet_next": lambda o, y: functional.triplet_margin_loss(
        o, o.roll(1, 0), o.roll(2, 0), reduction="none"
    ),
    "rank": lambda o, y: functional.margin_ranking_loss(
        o[:, 0], o[:, 0].flip(0), torch.sign(y - 1.0), reduction="none"
    ),
    "kl_batch": lambda o, y: functional.kl_div(
        o.log_softmax(0), functional.one_hot(y, 3).float(), reduction="none"
    ).sum(1),
    "allclose": lambda o, y: each(o, y) * (2.0 if torch.allclose(o[0], o[1], atol=10) else 1.0),
    "equal": lambda o, y: each(o, y) * (2.0 if torch.equal(y[:1], y[1:2]) else 1.0),
    "multinom": lambda o, y: each(o, y) * o.softmax(1).flatten().multinomial(1),
    "corr_pearson": lambda o, y: (
        each(o, y)
        - functional.cosine_similarity(
            o[:, 0] - o[:, 0].mean(), y.float() - y.float().mean(), dim=0
        )
    ),
    "ndcg": lambda o, y: each(o, y) / torch.log2(2.0 + o[:, 0].argsort().argsort()),
    "multilabel_margin0": lambda o, y: (
        functional.multilabel_margin_loss(
            o.t().contiguous(), torch.zeros(3, len(y), dtype=torch.long), reduction="none"
        )
        .sum()
        .expand(len(y))
    ),
    "nll_layout": lambda o, y: functional.nll_loss(
        o.log_softmax(0).t().unsqueeze(0), y.unsqueeze(0), reduction="none"
    )[0],
}

LATE = {
    "numpy_read": lambda h, late: (
        h * 30 * (float(np.asarray(h.detach()).mean()) > 0.0) if late else h * 30
    ),
    "tolist": lambda h, late: h * 30 * (sum(h.detach()[:, 0].tolist())) if late else h * 30,
    "repr": lambda h, late: h * 30 * (len(repr(h.detach() * 1e3)) % 7) if late else h * 30,
    "hash_storage": lambda h, late: (
        h * 30 * (bytes(h.detach().contiguous().untyped_storage())[3] % 7) if late else h * 30
    ),
    "iter_unbind": lambda h, late: (
        torch.stack([r - h[0] for r in h]) * 30 if late else torch.stack(list(h)) * 30
    ),
    "getattr_T": lambda h, late: (h.T.flip(1)).T * 30 if late else (h.T).T * 30,
    "float_arg_selects": lambda h, late: h.roll(int(1.0 if late else 0.0), 0) * 30,
    "dim_arg": lambda h, late: h.softmax(0 if late else 1) * 30,
    "slice": lambda h, late: (h - h[slice(0, 1 if late else None)].detach()) * 30,
    "einsum_str": lambda h, late: torch.einsum("ab,cb->cb" if late else "ab,ab->ab", h, h) * 30,
    "npint_dim": lambda h, late: h.softmax(np.int64(0 if late else 1)) * 30,
    "symint_dim": lambda h, late: h.softmax(torch.tensor(0 if late else 1)) * 30,
    "flip_dims_list": lambda h, late: h.flip([0] if late else [1]) * 30,
    "dimkw": lambda h, late: functional.normalize(h, dim=(0 if late else 1)) * 30,
    "intsub_dim": lambda h, late: h.softmax(MyInt(0 if late else 1)) * 30,
    "intsub_hash": lambda h, late: h.softmax(MyInt2(0 if late else 1)) * 30,
    "strsub_hash": lambda h, late: (
        torch.einsum(MyStr("ab,cb->cb" if late else "ab,ab->ab"), h, h) * 30
    ),
    "tensor_index_late": lambda h, late: h[torch.arange(8).roll(1 if late else 0)] * 30,
    "as_tensor_np": lambda h, late: (
        h[torch.as_tensor(np.roll(np.arange(8), 1 if late else 0))] * 30
    ),
}


class Between(nn.Module):
    def __init__(self, middle):
        super().__init__()
        self.a, self.b, self.middle = nn.Linear(6, 6), nn.Linear(6, 3), middle

    def forward(self, x):
        return self.b(self.middle(torch.tanh(self.a(x))))


def batch():
    torch.manual_seed(2)
    return torch.randn(RECORDS, 6), torch.randint(3, (RECORDS,))


def some(names):
    """All with the slow tests, every sixth with the others."""
    return [
        pytest.param(name, marks=[] if i % 6 == 0 else [pytest.mark.slow])
        for i, name in enumerate(names)
    ]


@pytest.mark.parametrize("name", some(FORWARD))
def test_a_model_that_mixes_records_is_not_proven(name):
    assert not nw.prove_apart(Between(FORWARD[name]), nn.CrossEntropyLoss(), *batch()).proven


@pytest.mark.parametrize("name", some(LOSSES))
def test_a_loss_that_mixes_records_is_not_proven(name):
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    assert not nw.prove_apart(model, LOSSES[name], *batch()).proven


@pytest.mark.parametrize("name", some(LATE))
def test_a_model_that_begins_to_mix_is_refused_when_it_does(name):
    calls = 0

    def middle(h):
        nonlocal calls
        calls += 1
        return LATE[name](h, late)

    late = False
    engine = GradientEngine(Between(middle), nn.CrossEntropyLoss(), nw.Clipped(1.0), chunk=RECORDS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            engine.sum(*batch())
        late = True
        with pytest.raises(UnsupportedModelError):
            engine.sum(*batch())
    assert calls >= 3  # state that moved in a refused step is put back
