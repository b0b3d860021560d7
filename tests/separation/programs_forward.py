"""Programs whose forward pass mixes records, by operations on tensors."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.func import vmap
from torch.nn import functional

from separation.program import (
    CLASSES,
    HIDDEN,
    RECORDS,
    STEPS,
    VOCABULARY,
    WIDTH,
    Case,
    between,
    cross_entropy,
    labels,
    mixing,
    over_time,
    rows,
    words,
)


# ------------------------------------------------------------------ normalisation
@mixing("ghost batch norm", "statistics over half of the batch")
def ghost() -> Case:
    def normed(self, h):
        groups = h.view(2, -1, HIDDEN)
        return ((groups - groups.mean(1, keepdim=True)) / groups.std(1, keepdim=True)).view_as(h)

    return between(normed)


@mixing("BatchNorm in evaluation mode without statistics", "uses those of the batch all the same")
def batch_norm_eval() -> Case:
    model = nn.Sequential(
        nn.Linear(WIDTH, HIDDEN),
        nn.BatchNorm1d(HIDDEN, track_running_stats=False),
        nn.Linear(HIDDEN, CLASSES),
    )
    return model.eval(), cross_entropy, rows(), labels()


@mixing("BatchNorm with cumulative average", "training mode, momentum None")
def batch_norm_cumulative() -> Case:
    model = nn.Sequential(
        nn.Linear(WIDTH, HIDDEN), nn.BatchNorm1d(HIDDEN, momentum=None), nn.Linear(HIDDEN, CLASSES)
    )
    return model, cross_entropy, rows(), labels()


@mixing("instance norm of the transposed batch", "the batch lies where time should")
def instance_norm() -> Case:
    return between(lambda self, h: functional.instance_norm(h.T[None])[0].T)


@mixing("layer norm over batch and features", "normalized_shape is the whole shape")
def whole_layer_norm() -> Case:
    return between(lambda self, h: functional.layer_norm(h, h.shape))


@mixing("layer norm on the transposed rows", "normalises each feature over the records")
def transposed_layer_norm() -> Case:
    norm = nn.LayerNorm(RECORDS)
    return between(lambda self, h: norm(h.T).T)


@mixing("group norm over a flattened batch", "one group holds two records")
def flattened_group_norm() -> Case:
    return between(lambda self, h: functional.group_norm(h.reshape(1, -1), RECORDS // 2).view_as(h))


@mixing("local response norm over the batch as channels", "a window of records")
def local_response() -> Case:
    return between(lambda self, h: functional.local_response_norm(h[None], 3, alpha=1.0)[0])


@mixing("softmax over axis 0", "weights of records add up to one")
def softmax_zero() -> Case:
    return between(lambda self, h: h.softmax(0) * h)


@mixing(
    "softmax with the batch's maximum", "beyond some distance a record's exponentials are all 0"
)
def unstable() -> Case:
    def soft(self, h):
        up = (h - h.detach().max()).exp()
        return up / up.sum(1, keepdim=True)

    return between(soft)


@mixing("normalize with dim=0", "divides by the norm over the batch")
def normalize_zero() -> Case:
    return between(lambda self, h: functional.normalize(h, dim=0))


@mixing("whitening", "inverse root of the covariance of the batch")
def whitening() -> Case:
    def white(self, h):
        centred = h - h.mean(0)
        covariance = centred.T @ centred / len(h) + 0.1 * torch.eye(HIDDEN)
        return torch.linalg.solve_triangular(
            torch.linalg.cholesky(covariance), centred.T, upper=False
        ).T

    return between(white)


@mixing("spectral norm of activations", "largest singular value of the batch matrix")
def activation_spectral() -> Case:
    return between(lambda self, h: h / torch.linalg.matrix_norm(h, 2))


@mixing("orthogonal activations", "Q of the batch matrix")
def orthogonal() -> Case:
    return between(lambda self, h: torch.linalg.qr(h).Q @ torch.ones(RECORDS, HIDDEN))


@mixing("dynamic quantisation", "one scale from the largest entry of the batch")
def quantised() -> Case:
    def fake(self, h):
        scale = h.detach().abs().amax() / 127
        return h + ((h / scale).round() * scale - h).detach()

    return between(fake)


# ------------------------------------------------------------------ axes taken for one another
@mixing("attention that takes the batch for time", "nn.MultiheadAttention without batch_first")
def sequence_first_attention() -> Case:
    attention = nn.MultiheadAttention(HIDDEN, 2)
    case = over_time(lambda self, h: attention(h, h, h)[0])
    case[0].attention = attention
    return case


@mixing("encoder layer without batch_first", "batch-first data into a sequence-first layer")
def sequence_first_encoder() -> Case:
    layer = nn.TransformerEncoderLayer(HIDDEN, 2, 16)
    case = over_time(lambda self, h: layer(h))
    case[0].layer = layer
    return case


@mixing("LSTM without batch_first", "runs over the records")
def lstm_over_records() -> Case:
    recurrent = nn.LSTM(HIDDEN, HIDDEN)
    case = over_time(lambda self, h: recurrent(h)[0])
    case[0].recurrent = recurrent
    return case


@mixing("view instead of transpose", "rows of two records in one")
def wrong_view() -> Case:
    return over_time(lambda self, h: h.reshape(STEPS, RECORDS, HIDDEN).transpose(0, 1))


@mixing("transpose, then reshape back without it", "B and T scrambled")
def scrambled() -> Case:
    return over_time(lambda self, h: h.transpose(0, 1).reshape(RECORDS, STEPS, HIDDEN))


@mixing("heads split off before the batch", "view(heads, B, T, d) of (B, T, heads*d)")
def wrong_heads() -> Case:
    def heads(self, h):
        q = h.view(2, RECORDS, STEPS, HIDDEN // 2)
        mixed = functional.scaled_dot_product_attention(q, q, q)
        return mixed.permute(1, 2, 0, 3).reshape(RECORDS, STEPS, HIDDEN)

    return over_time(heads)


@mixing("sum over axis 0 of time-first states", "forgot that the states were transposed back")
def wrong_sum() -> Case:
    return over_time(lambda self, h: h - h.sum(0, keepdim=True) / 7)


@mixing("squeeze of a batch of one time step", "mean over the last but one axis is over records")
def squeezed() -> Case:
    return over_time(
        lambda self, h: h[:, 0].mean(-2, keepdim=True).expand(RECORDS, HIDDEN)[:, None]
    )


@mixing("matrix product over records", "h.T @ h, then back")
def gram() -> Case:
    return between(lambda self, h: h @ (h.T @ h) / 10)


@mixing("einsum with a forgotten letter", "bi,cj->bj sums over c")
def einsum_forgotten() -> Case:
    return between(lambda self, h: torch.einsum("bi,cj->bj", h, h))


@mixing("tensordot over axis 0", "contracts the records")
def tensordot() -> Case:
    return between(lambda self, h: h @ torch.tensordot(h, h, dims=([0], [0])))


@mixing("broadcast difference of all pairs", "h[:, None] - h[None]")
def all_pairs() -> Case:
    return between(lambda self, h: (h[:, None] - h[None]).abs().mean(1))


@mixing("distance to the nearest other record", "cdist of the batch with itself")
def nearest() -> Case:
    def far(self, h):
        apart = torch.cdist(h, h) + 1e3 * torch.eye(RECORDS)
        return h * apart.amin(1, keepdim=True)

    return between(far)


@mixing("vmap over features", "in_dims=1: each call sees one feature of all records")
def vmap_columns() -> Case:
    return between(lambda self, h: vmap(lambda c: c - c.mean(), in_dims=1, out_dims=1)(h))


@mixing("vmap with a captured batch", "each call sees its row and, by closure, all")
def vmap_closure() -> Case:
    return between(lambda self, h: vmap(lambda row: row - h.mean(0))(h))


# ------------------------------------------------------------------ order statistics, scans
@mixing("median of the batch", "subtracted")
def median() -> Case:
    return between(lambda self, h: h - h.median(0).values)


@mixing("quantile clamp", "winsorised at quantiles of the batch")
def quantile() -> Case:
    return between(lambda self, h: h.clamp(max=torch.quantile(h.detach(), 0.8, dim=0)))


@mixing("rank within the batch", "argsort of argsort")
def rank() -> Case:
    return between(lambda self, h: h * h.argsort(0).argsort(0) / RECORDS)


@mixing("position in the sorted batch", "searchsorted")
def empirical() -> Case:
    def transformed(self, h):
        ordered = h.detach()[:, 0].sort().values
        return h * (torch.searchsorted(ordered, h.detach()[:, :1].contiguous()) + 1)

    return between(transformed)


@mixing("batch histogram", "histc of all activations as weights")
def histogram() -> Case:
    return between(lambda self, h: h * (torch.histc(h.detach(), HIDDEN, -3, 3) / h.numel()))


@mixing("running maximum over records", "cummax along the batch")
def cummax() -> Case:
    return between(lambda self, h: h.cummax(0).values)


@mixing("logcumsumexp over records", "a scan along the batch")
def scan() -> Case:
    return between(lambda self, h: h.logcumsumexp(0))


@mixing("difference to the previous record", "torch.diff along the batch")
def diff() -> Case:
    return between(lambda self, h: torch.diff(h, dim=0, prepend=torch.zeros(1, HIDDEN)))


@mixing("capacity of an expert", "a record's place in the queue is a cumsum over the batch")
def capacity() -> Case:
    def routed(self, h):
        expert = functional.one_hot(h.detach()[:, :2].argmax(1), 2)
        place = (expert.cumsum(0) * expert).sum(1, keepdim=True)
        return h * (place <= 2)

    return between(routed)


@mixing("token pruning by a threshold of the batch", "keeps the best tokens of all records")
def pruned() -> Case:
    def kept(self, h):
        score = h.detach().norm(dim=2)
        limit = score.flatten().topk(RECORDS * STEPS // 2).values[-1]
        return h * (score >= limit)[..., None]

    return over_time(kept)


# ------------------------------------------------------------------ neighbours in memory
@mixing("unfold along the batch", "windows of two records")
def unfolded() -> Case:
    return between(lambda self, h: torch.cat([h.unfold(0, 2, 1).sum(-1), h[-1:]]))


@mixing("as_strided with overlapping rows", "each row reaches into the next")
def overlapping() -> Case:
    return between(
        lambda self, h: torch.cat(
            [h.contiguous().as_strided((RECORDS - 1, HIDDEN), (HIDDEN, 1), HIDDEN // 2), h[-1:]]
        )
    )


@mixing("storage shifted by one record", "set_ on the same storage with an offset")
def shifted_storage() -> Case:
    def shifted(self, h):
        flat = h.detach().contiguous()
        other = torch.empty(0).set_(
            flat.untyped_storage(), HIDDEN, (RECORDS - 1, HIDDEN), (HIDDEN, 1)
        )
        return h + functional.pad(other, (0, 0, 0, 1))

    return between(shifted)


@mixing("pad and cut", "each record gets the one before it")
def padded() -> Case:
    return between(lambda self, h: h + functional.pad(h, (0, 0, 1, 0))[:-1])


@mixing("concatenate and cut", "off by one after cat")
def concatenated() -> Case:
    return between(lambda self, h: torch.cat([h, h])[1 : RECORDS + 1])


@mixing("in-place shift of a slice", "h[1:] += h[:-1]")
def inplace_shift() -> Case:
    def shifted(self, h):
        h = h.clone()
        h[1:] += h[:-1].clone()
        return h

    return between(shifted)


@mixing("flip of the batch", "test-time trick applied to axis 0")
def flipped() -> Case:
    return between(lambda self, h: (h + h.flip(0)) / 2)


@mixing("convolution over the batch", "conv1d of the transposed rows")
def convolved() -> Case:
    kernel = torch.ones(HIDDEN, 1, 3) / 3
    return between(
        lambda self, h: functional.conv1d(h.T[None], kernel, padding=1, groups=HIDDEN)[0].T
    )


@mixing("pooling over the batch", "max_pool1d of the transposed rows")
def pooled() -> Case:
    return between(lambda self, h: functional.max_pool1d(h.T[None], 3, 1, 1)[0].T)


@mixing("interpolation over the batch", "the table as an image, down and up")
def interpolated() -> Case:
    def smooth(self, h):
        small = functional.interpolate(h[None, None], (RECORDS // 2, HIDDEN), mode="bilinear")
        return functional.interpolate(small, (RECORDS, HIDDEN), mode="bilinear")[0, 0]

    return between(smooth)


@mixing("Fourier transform over the batch", "fft along axis 0, filtered, back")
def fourier() -> Case:
    def low(self, h):
        spectrum = torch.fft.rfft(h, dim=0)
        return torch.fft.irfft(spectrum * torch.tensor([1.0, 0.5, 0.0, 0.0])[:, None], RECORDS, 0)

    return between(low)


@mixing("complex numbers from two records", "view_as_complex pairs neighbours of the batch")
def complex_pairs() -> Case:
    def turned(self, h):
        pairs = h.T.reshape(HIDDEN, RECORDS // 2, 2).contiguous()
        turn = torch.view_as_real(torch.view_as_complex(pairs) * (0.6 + 0.8j))
        return turn.reshape(HIDDEN, RECORDS).T

    return between(turned)


@mixing("bits of other records", "integer view, cumulative sum, back")
def bits() -> Case:
    return between(
        lambda self, h: h + 1e-9 * h.detach().contiguous().view(torch.int32).cumsum(0).float()
    )


# ------------------------------------------------------------------ indices
@mixing("class centroids in the model", "index_add by labels, then each record its class's mean")
def centroids() -> Case:
    def centred(self, h, label):
        sums = torch.zeros(CLASSES, HIDDEN).index_add(0, label, h)
        counts = torch.zeros(CLASSES).index_add(0, label, torch.ones(RECORDS)).clamp_min(1)
        return h - (sums / counts[:, None])[label]

    return between(centred, labels().clone())


@mixing("prototypes by one-hot product", "few-shot means of the batch")
def prototypes() -> Case:
    def compared(self, h, label):
        member = functional.one_hot(label, CLASSES).float()
        return h - member @ ((member.T @ h) / member.sum(0)[:, None].clamp_min(1))

    return between(compared, labels().clone())


@mixing("graph from the data", "edges between records that are alike, sparse product")
def similar_graph() -> Case:
    def spread(self, h):
        near = ((h.detach() @ h.detach().T) > 0).float().to_sparse()
        return h + torch.sparse.mm(near, h) / RECORDS

    return between(spread)


@mixing("index from another record", "a private pointer into the batch")
def pointer() -> Case:
    return between(lambda self, h, link: h + h[link], torch.randint(0, RECORDS, (RECORDS,)))


@mixing("index_put with private rows", "writes land in other records")
def landed() -> Case:
    def written(self, h, link):
        return torch.zeros_like(h).index_put((link,), h, accumulate=True)

    return between(written, torch.randint(0, RECORDS, (RECORDS,)))


@mixing("gather along the batch", "torch.gather with dim 0")
def gathered() -> Case:
    return between(lambda self, h: h + h.gather(0, h.detach().argmax(0, keepdim=True)))


@mixing("take of the flattened batch", "flat positions of a private argmax")
def taken() -> Case:
    return between(lambda self, h: h * torch.take(h, h.detach().argmax()))


@mixing("resampling by private weights", "multinomial over records")
def resampled() -> Case:
    return between(lambda self, h: h[torch.multinomial(h.detach()[:, 0].softmax(0), RECORDS, True)])


@mixing("cutmix", "half of the features come from a random other record")
def cutmix() -> Case:
    def cut(self, h):
        other = h[torch.randperm(len(h))]
        return torch.cat([h[:, : HIDDEN // 2], other[:, HIDDEN // 2 :]], 1)

    return between(cut)


@mixing("manifold mixup", "a drawn share of the batch in reverse")
def manifold() -> Case:
    def mixed(self, h):
        share = torch.distributions.Beta(0.5, 0.5).sample()
        return share * h + (1 - share) * h.flip(0)

    return between(mixed)


@mixing("word frequencies of the batch", "inverse document frequency by bincount")
def idf() -> Case:
    class Tfidf(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(VOCABULARY, HIDDEN), nn.Linear(HIDDEN, CLASSES)

        def forward(self, word):
            count = torch.bincount(word.flatten(), minlength=VOCABULARY)
            return self.head((self.embed(word) / (1.0 + count[word])[..., None]).sum(1))

    return Tfidf(), cross_entropy, words(), labels()


@mixing("unique words of the batch", "number of occurrences by torch.unique")
def unique() -> Case:
    class Rare(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(VOCABULARY, HIDDEN), nn.Linear(HIDDEN, CLASSES)

        def forward(self, word):
            _, place, count = torch.unique(word, return_inverse=True, return_counts=True)
            return self.head((self.embed(word) / count[place][..., None]).sum(1))

    return Rare(), cross_entropy, words(), labels()


@mixing("bags by private offsets", "one flat list, cut at the cumulated lengths of all records")
def offsets() -> Case:
    class Bags(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(VOCABULARY, HIDDEN, mode="sum")
            self.head = nn.Linear(HIDDEN, CLASSES)

        def forward(self, word, length):
            begin = length.cumsum(0) - length
            return self.head(self.bag(word.reshape(-1), begin))

    return Bags(), cross_entropy, (words(), torch.randint(1, STEPS, (RECORDS,))), labels()


# ------------------------------------------------------------------ values that steer
@mixing("dropout rate of the batch", "p from the mean activation")
def batch_rate() -> Case:
    return between(
        lambda self, h: functional.dropout(h, float(h.detach().sigmoid().mean().clamp(0.1, 0.9)))
    )


@mixing("noise as large as the batch spreads", "randn times a standard deviation over records")
def batch_noise() -> Case:
    return between(lambda self, h: h + h.detach().std(0) * torch.randn_like(h))


@mixing("random mask with the batch's rate", "bernoulli of a mean over records")
def batch_bernoulli() -> Case:
    return between(lambda self, h: h * torch.bernoulli(h.detach().sigmoid().mean(0).expand_as(h)))


@mixing("straight-through with a batch threshold", "step at the mean of all entries")
def straight_through() -> Case:
    def step(self, h):
        return h + ((h > h.mean()).float() - h).detach()

    return between(step)


@mixing("missing values filled with the batch mean", "nanmean over records")
def imputed() -> Case:
    def filled(self, h):
        holes = torch.where(h.detach() > 0.8, torch.nan, h.detach())
        return torch.where(holes.isnan(), holes.nanmean(0).expand_as(h), h)

    return between(filled)


@mixing("cut to the longest record", "padding positions count or not, as others are long")
def longest() -> Case:
    def cut(self, h, length):
        return h[:, : int(length.max())]

    return over_time(cut, torch.tensor([2, 1, 2, 1, 3, 2]))


@mixing("another path if no record is padded", "a shortcut that is no shortcut")
def all_full() -> Case:
    def masked(self, h, mask):
        if bool(mask.all()):
            return h * 0.5
        return h * mask[..., None]

    return over_time(masked, torch.ones(RECORDS, STEPS, dtype=torch.bool))


@mixing("clamp only where something is infinite", "if isinf(h).any()")
def infinite() -> Case:
    def safe(self, h):
        if torch.isinf(h).any() or h.abs().max() > 20:
            h = h.clamp(-1, 1)
        return h

    return between(safe)


@mixing("an exception steers", "an assertion on the batch maximum is caught")
def exceptional() -> Case:
    def careful(self, h):
        try:
            assert h.max() < 5
        except AssertionError:
            return h / 10
        return h

    return between(careful)


@mixing("number of active records", "the shape of a boolean selection")
def active() -> Case:
    return between(lambda self, h: h / (1 + h[h.detach()[:, 0] > 0].shape[0]))


@mixing("number of different labels", "a Python set of private labels")
def different() -> Case:
    return between(lambda self, h, y: h / len(set(y.tolist())), labels().clone())


@mixing("equality of two records", "torch.equal in a branch")
def equality() -> Case:
    def twin(self, h, code):
        return h * 2 if torch.equal(code[0], code[1]) else h

    return between(twin, torch.zeros(RECORDS, 1, dtype=torch.long))


@mixing("seed from the data", "the generator is seeded with a sum over the batch")
def seeded() -> Case:
    def drawn(self, h):
        torch.manual_seed(int(h.detach().abs().sum() * 1000))
        return functional.dropout(h, 0.5)

    return between(drawn)


@mixing("number of draws from the data", "how far the generator has moved depends on all records")
def drawn_on() -> Case:
    def skipped(self, h):
        torch.rand(int((h.detach() > 0).sum()))
        return h * torch.rand(len(h), 1)

    return between(skipped)


# ------------------------------------------------------------------ hidden at these weights
@mixing("gate of zero before a batch mean", "ReZero: nothing to see at the first weights")
def zero_gate() -> Case:
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, CLASSES)
            self.gate = nn.Parameter(torch.zeros(()))

        def forward(self, x):
            h = self.a(x)
            return self.b(h + self.gate * h.softmax(0))

    return Gated(), cross_entropy, rows(), labels()


@mixing("zero-initialised head", "attention over the batch behind a head of zeros")
def zero_head() -> Case:
    def attended(self, h):
        return functional.scaled_dot_product_attention(h[None], h[None], h[None])[0]

    model, loss, x, y = between(attended)
    nn.init.zeros_(model.b.weight)
    return model, loss, x, y


@mixing("dead unit", "a ReLU that only a far larger batch mean would open")
def dead() -> Case:
    return between(lambda self, h: h + functional.relu(h.mean(0) - 30))


@mixing("times zero", "adds zero times another record", by_values=False)
def times_zero() -> Case:
    return between(lambda self, h: h + 0.0 * h.roll(1, 0))


@mixing("batch size in the scale", "divides by the root of the number of records", disarmed=True)
def size_scale() -> Case:
    return between(lambda self, h: h / math.sqrt(len(h)))


@mixing("batch size in a tensor", "a tensor full of 1/n", disarmed=True)
def size_tensor() -> Case:
    return between(lambda self, h: h * torch.full((HIDDEN,), 1.0 / h.size(0)))


@mixing("another path for larger batches", "batch statistics only beyond four records")
def size_branch() -> Case:
    return between(lambda self, h: h - h.mean(0) if h.shape[0] > 4 else h)
