"""Stock models with their default dropout: proven apart, then exact, then trained.

A core of them runs with every test run; the whole zoo with the slow ones.
"""

import warnings

import pytest
import torch
from torch.utils import _pytree as pytree

import noisewise as nw
from noisewise.gradients import FallbackWarning
from zoo.models import CORE, RECORDS, ZOO
from zoo.reference import error_of, largest_removal, reference, replaying, untouched

TOLERANCE = 1e-4  # of the sensitivity

pytestmark = [
    pytest.mark.skipif(not hasattr(nw, "prove_apart"), reason="this version proves nothing"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::noisewise.gradients.FallbackWarning"),
]
PROVABLE = [name for name, entry in ZOO.items() if not entry.refusal]
REFUSED = [name for name, entry in ZOO.items() if entry.refusal]


def each(names, quick=CORE):
    """The core at once, and all of them among the slow tests."""
    core = [pytest.param(name, id=name) for name in names if name in quick]
    slow = pytest.mark.slow
    return core + [pytest.param(name, id=f"zoo: {name}", marks=slow) for name in names]


def built(name, **options):
    entry = ZOO[name]
    if entry.missing():
        pytest.skip(f"needs {', '.join(entry.missing())}: pip install 'noisewise[zoo]'")
    return entry.case(**options)


def state_of(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def clip_of(expected, groups):
    """A limit in the middle: about half of the records are clipped."""
    norms = torch.cat([expected.norms(names) for names in groups])
    return float(norms[norms > 0].median()) * 1.01


def assert_exact(name, model, loss, x, y, ways=("model", "layer", "parameter")):
    expected = reference(model, loss, x, y, ZOO[name].host_draws)
    everyone = list(range(RECORDS))
    for per in ways:
        each_alone = [[parameter] for parameter in expected.gradients]
        clip = clip_of(expected, [list(expected.gradients)] if per == "model" else each_alone)
        with untouched(model), replaying(model, expected.draws, everyone):
            result = nw.bounded_sum(model, loss, x, y, nw.Clipped(clip, per=per), chunk=RECORDS)
        assert set(result.gradients) == set(expected.gradients)
        assert error_of(result, expected, clip) <= TOLERANCE, per
    return expected


#: Families that people train, and what may be refused of them (in words, see below).
FAMILIES = """BERT, RoBERTa, DeBERTa-v2, GPT-2, Llama, Qwen2, Gemma, T5, BART, ViT, Swin, ConvNeXt,
Whisper, Mamba, CLIP, timm ResNet with group norm, timm ViT, timm ConvNeXt, timm Mixer, timm
EfficientNet with group norm, LSTM, GRU, nn.Transformer, U-Net, DLRM, FT-Transformer, CRF, LoRA on
BERT, prefix tuning of GPT-2, prompt tuning of GPT-2, Mixtral with a product for every token"""
BOUNDARY = "wav2vec2, Mixtral, packed LSTM"


def test_all_families_are_there_and_no_more_than_the_boundary_is_refused():
    proven = {name.replace(", a product", " with a product") for name in PROVABLE}
    assert {" ".join(name.split()) for name in FAMILIES.split(",")} <= {n.strip() for n in proven}
    graphs = {name for name in REFUSED if name.startswith("graph network")}
    assert set(REFUSED) - graphs == set(BOUNDARY.split(", "))
    assert len(CORE) >= 10


@pytest.mark.parametrize("name", each(PROVABLE))
def test_is_proven_apart_and_left_as_it_was(name):
    model, loss, x, y = built(name)
    before, mode = state_of(model), [m.training for m in model.modules()]
    proof = nw.prove_apart(model, loss, x, y)
    assert proof.proven, str(proof)
    assert not proof.mixed
    assert not proof.unknown
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert mode == [m.training for m in model.modules()]
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("name", each(REFUSED))
def test_what_cannot_be_proven_is_refused_in_words(name):
    model, loss, x, y = built(name)
    proof = nw.prove_apart(model, loss, x, y)
    assert not proof.proven
    with pytest.raises(nw.NoisewiseError, match=ZOO[name].refusal):
        nw.bounded_sum(model, loss, x, y, nw.Clipped(1.0))


@pytest.mark.parametrize("name", each(PROVABLE))
def test_clipped_sums_are_those_of_the_records_alone_with_the_same_draws(name):
    assert_exact(name, *built(name))


@pytest.mark.parametrize("name", each(PROVABLE, ["linear maps over (B*T, d)", "VAE"]))
def test_removing_a_record_moves_no_sum_by_more_than_its_sensitivity(name):
    model, loss, x, y = built(name)
    expected = reference(model, loss, x, y, ZOO[name].host_draws)
    clip = clip_of(expected, [[parameter] for parameter in expected.gradients])

    def bounded(x, y):
        return nw.bounded_sum(model, loss, x, y, nw.Factored(clip), chunk=RECORDS)

    assert largest_removal(bounded, model, x, y, expected) <= 1.0


@pytest.mark.parametrize("name", each(PROVABLE, [name for name in CORE if name != "Swin"]))
def test_three_private_steps_later_the_sums_are_still_exact(name):
    model, loss, x, y = built(name, records=2 * RECORDS)
    learnt = [p for p in model.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in learnt]
    plan = nw.Plan(
        gradients=nw.Clipped(1.0, per="layer"), noise_multiplier=1.0, steps=3, batch_size=RECORDS,
        delta=1e-3, seed=1,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        run = nw.make_private(model, torch.optim.SGD(learnt, lr=0.05), loss, (x, y), plan)
        for batch, target in run.loader:
            run.step(batch, target)
    assert 0 < run.statement().epsilon < float("inf")
    run.close()
    model.zero_grad(set_to_none=True)
    assert all(bool(p.isfinite().all()) for p in learnt)
    assert all(not torch.equal(p, old) for p, old in zip(learnt, before, strict=True))
    first = pytree.tree_map_only(torch.Tensor, lambda t: t[:RECORDS], (x, y))
    assert_exact(name, model, loss, *first, ways=("layer",))
