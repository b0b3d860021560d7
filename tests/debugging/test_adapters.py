"""Code as it stands under the bug finder: scripts with data of their own, arrays, trainers."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
import typer
from torch import nn
from torch.nn.functional import cross_entropy
from typer.testing import CliRunner

from noisewise.cli.debug import debug
from noisewise.debugging import TrainingFailedError, check
from noisewise.debugging.adapters import array_function, torch_script, trainer_function
from noisewise.debugging.command import CommandTraining

MODEL = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 3))

def example():
    return torch.zeros(2, 8), torch.tensor([0, 2])
"""

# A script that loads its own data, builds its own model and never ends soon.
SCRIPT = """
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from model import build

parser = argparse.ArgumentParser()
parser.add_argument("--clip", type=float, default=1.0)
parser.add_argument("--sigma", type=float, default=1.0)
given = parser.parse_args()
data = TensorDataset(torch.randn(500, 8), torch.randint(3, (500,)))
loader = DataLoader(data, batch_size=50)
model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
parameters = list(model.parameters())
for epoch in range(3):
    for x, y in loader:
        total = [torch.zeros_like(p) for p in parameters]
        for one, target in zip(x, y):
            loss = nn.functional.cross_entropy(model(one[None]), target[None])
            gradients = torch.autograd.grad(loss, parameters)
            norm = torch.stack([g.norm() for g in gradients]).norm()
            factor = min(1.0, given.clip / float(norm))
            for t, g in zip(total, gradients):
                t.add_(g, alpha=factor)
        for p, t in zip(parameters, total):
            p.grad = (t + FACTOR given.sigma * given.clip * torch.randn_like(p)) / loader.batch_size
        optimizer.step()
print("trained")
"""


def build():
    return nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 3))


def initial():
    return {name: value.clone() for name, value in build().state_dict().items()}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "train.py").write_text(SCRIPT.replace("FACTOR ", ""))
    (tmp_path / "half.py").write_text(SCRIPT.replace("FACTOR ", "0.5 * "))
    return tmp_path


def run(script, **changed):
    given = {
        "clip": 0.5,
        "noise_multiplier": 0.0,
        "batch_size": 4,
        "seed": 3,
        "steps": 1,
        "lr": 0.2,
        "data": (torch.randn(4, 8), torch.tensor([0, 1, 2, 0])),
        "init": initial(),
    }
    return script(**{**given, **changed})


def test_a_script_with_its_own_data_is_given_records_weights_and_an_end(folder):
    script = torch_script(str(folder / "train.py"), "--clip {clip} --sigma {noise_multiplier}")
    init = initial()
    after = run(script, init=init)
    assert set(after) == set(init)
    moved = torch.cat([(init[n] - after[n]).flatten() for n in init]).norm()
    # The mean of four gradients of norm 0.5 at most, times the learning rate of the test.
    assert 0 < moved <= 0.2 * 0.5 * 1.0001
    assert sys.argv[0] != str(folder / "train.py")
    assert "model" not in sys.modules
    more = run(script, init=init, steps=5)
    assert torch.cat([(init[n] - more[n]).flatten() for n in init]).norm() > moved


def test_a_script_that_trains_something_else_is_told_so(folder):
    (folder / "other.py").write_text("print(1)")
    with pytest.raises(TrainingFailedError, match="without a step"):
        run(torch_script(str(folder / "other.py")))
    with pytest.raises(ValueError, match="no script"):
        run(torch_script(str(folder / "nowhere.py")))


def test_an_adapter_of_five_lines_is_enough_for_the_command_line(folder, monkeypatch):
    adapter = """
        from model import build, example
        from noisewise.debugging.adapters import torch_script

        train = torch_script("half.py", "--clip {clip} --sigma {noise_multiplier}")
        """
    (folder / "nw_adapter.py").write_text(textwrap.dedent(adapter))
    monkeypatch.chdir(folder)
    app = typer.Typer()
    app.command()(debug)
    done = CliRunner().invoke(app, ["--effort", "quick", "--json"])
    assert done.exit_code == 1, done.output
    facts = json.loads(done.stdout)
    assert "noise-too-small" in facts["bugs"]
    assert "batch-size-fixed" in facts["bugs"]


def test_a_loss_of_weights_and_records_is_not_taken_for_that_of_the_model(folder, monkeypatch):
    """JAX code often has a `loss(params, x, y)`, which an adapter would hand over by its name."""
    adapter = """
        from model import build, example

        def loss(params, x, y):
            return 0.0

        def train(*, clip, batch_size, data, init):
            return init
        """
    (folder / "nw_adapter.py").write_text(textwrap.dedent(adapter))
    monkeypatch.chdir(folder)
    app = typer.Typer()
    app.command()(debug)
    done = CliRunner().invoke(app, ["--effort", "quick"])
    assert isinstance(done.exception, ValueError)
    assert "loss(output, target), and yours takes (params, x, y)" in str(done.exception)


def numpy_training(*, params, x, y, clip, noise_multiplier, batch_size, seed, steps, lr):
    """A linear classifier without torch; its kernel is (inputs, outputs), as in Keras and Flax."""
    rng = np.random.default_rng(seed)
    kernel, bias = params["weight"].astype(float), params["bias"].astype(float)
    for _ in range(steps):
        total, shift = np.zeros_like(kernel), np.zeros_like(bias)
        for i in np.flatnonzero(rng.random(len(x)) < batch_size / len(x)):
            logits = x[i] @ kernel + bias
            chance = np.exp(logits - logits.max())
            chance = chance / chance.sum() - np.eye(len(bias))[y[i]]
            gradient = np.outer(x[i], chance)
            norm = np.sqrt((gradient**2).sum() + (chance**2).sum())
            if np.isfinite(norm):
                factor = min(1.0, clip / max(norm, 1e-12))
                total += factor * gradient
                shift += factor * chance
        scale = noise_multiplier * clip
        kernel = kernel - lr * (total + scale * rng.standard_normal(kernel.shape)) / batch_size
        bias = bias - lr * (shift + scale * rng.standard_normal(bias.shape)) / batch_size
    return {"weight": kernel.astype(np.float32), "bias": bias.astype(np.float32)}


def test_functions_of_arrays_are_checked_with_their_own_layout():
    train = array_function(numpy_training, transposed=("weight",))
    findings = check(
        train,
        lambda: nn.Linear(20, 4),
        cross_entropy,
        example=(torch.zeros(2, 20), torch.tensor([0, 3])),
        effort="quick",
        tests=("preflight", "noise", "contribution", "separation", "freshness", "decisions"),
    )
    assert findings.ok, str(findings)


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
def test_a_jax_train_function_is_checked():
    jax = importlib.import_module("jax")
    jnp = jax.numpy

    def loss(params, x, y):
        logits = x @ params["weight"] + params["bias"]
        return jax.nn.logsumexp(logits) - logits[y]

    gradients = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0, 0)))

    def train(*, params, x, y, clip, noise_multiplier, batch_size, seed, steps, lr):
        key = jax.random.PRNGKey(seed)
        params = {name: jnp.asarray(value) for name, value in params.items()}
        for _ in range(steps):
            key, draw, chance = jax.random.split(key, 3)
            inside = jax.random.uniform(draw, (len(x),)) < batch_size / len(x)
            found = gradients(params, x, y)
            norm = jnp.sqrt(sum((g.reshape(len(x), -1) ** 2).sum(1) for g in found.values()))
            good = inside & jnp.isfinite(norm)
            factor = jnp.where(good, jnp.minimum(1.0, clip / jnp.maximum(norm, 1e-12)), 0.0)
            keys = dict(zip(found, jax.random.split(chance, len(found)), strict=True))
            for name, g in found.items():
                g = jnp.where(good.reshape(-1, *[1] * (g.ndim - 1)), g, 0.0)
                total = jnp.einsum("b,b...->...", factor, g)
                noise = noise_multiplier * clip * jax.random.normal(keys[name], total.shape)
                params[name] = params[name] - lr * (total + noise) / batch_size
        return params

    findings = check(
        array_function(train, transposed=("weight",)),
        lambda: nn.Linear(20, 4),
        cross_entropy,
        example=(torch.zeros(2, 20), torch.tensor([0, 3])),
        effort="quick",
        tests=("preflight", "noise", "contribution", "separation", "freshness"),
    )
    assert findings.ok, str(findings)


@pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="Keras is not installed")
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_keras_model_is_checked(share, monkeypatch):
    """A Keras model with its own weights, on the backend of torch; half of its noise is found."""
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = importlib.import_module("keras")
    model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(4)])
    names = ("weight", "bias")

    def train(*, params, x, y, clip, noise_multiplier, batch_size, seed, steps, lr):
        rng = np.random.default_rng(seed)
        model.set_weights([params[name] for name in names])
        for _ in range(steps):
            totals = [np.zeros(w.shape) for w in model.get_weights()]
            for i in np.flatnonzero(rng.random(len(x)) < batch_size / len(x)):
                outputs = model(x[i : i + 1])
                loss = keras.losses.sparse_categorical_crossentropy(
                    y[i : i + 1], outputs, from_logits=True
                )
                parts = torch.autograd.grad(loss.sum(), [w.value for w in model.trainable_weights])
                own = [part.detach().cpu().numpy() for part in parts]
                norm = np.sqrt(sum(float((part**2).sum()) for part in own))
                if np.isfinite(norm):
                    factor = min(1.0, clip / max(norm, 1e-12))
                    totals = [t + factor * part for t, part in zip(totals, own, strict=True)]
            scale = share * noise_multiplier * clip
            moved = [
                w - lr * (t + scale * rng.standard_normal(w.shape)) / batch_size
                for w, t in zip(model.get_weights(), totals, strict=True)
            ]
            model.set_weights(moved)
        return dict(zip(names, model.get_weights(), strict=True))

    findings = check(
        array_function(train, transposed=("weight",)),
        lambda: nn.Linear(20, 4),
        cross_entropy,
        example=(torch.zeros(2, 20), torch.tensor([0, 3])),
        effort="quick",
        tests=("preflight", "noise", "contribution", "separation"),
    )
    assert findings.bugs == ([] if share == 1.0 else ["noise-too-small"]), str(findings)


@pytest.mark.slow
def test_a_hugging_face_trainer_is_checked(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    # A folder of these tests is called like a package that the trainer would look for.
    monkeypatch.setattr("transformers.trainer.is_datasets_available", lambda: False)

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(20, 8)
            self.head = nn.Linear(8, 3)

        def forward(self, input_ids, labels=None):
            logits = self.head(self.embedding(input_ids).mean(1))
            return (cross_entropy(logits, labels), logits) if labels is not None else logits

    class PrivateTrainer(transformers.Trainer):
        settings = None

        def training_step(self, model, inputs, *_):
            clip, size = self.settings.clip, self.settings.batch_size
            parameters = list(model.parameters())
            total = [torch.zeros_like(p) for p in parameters]
            for i in range(len(inputs["labels"])):
                one = {name: value[i : i + 1] for name, value in inputs.items()}
                gradients = torch.autograd.grad(model(**one)[0], parameters)
                norm = torch.stack([g.norm() for g in gradients]).norm()
                for t, g in zip(total, gradients, strict=True):
                    t.add_(g, alpha=min(1.0, clip / float(norm)))
            scale = self.settings.noise_multiplier * clip
            for p, t in zip(parameters, total, strict=True):
                p.grad = (t + scale * torch.randn_like(p)) / size
            return torch.zeros(())

    def make(model, dataset, settings):
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=settings.batch_size,
            max_steps=settings.steps,
            learning_rate=settings.lr,
            lr_scheduler_type="constant",
            optim="sgd",
            max_grad_norm=0.0,
            seed=settings.seed,
            data_seed=settings.seed,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = PrivateTrainer(model=model, args=arguments, train_dataset=dataset)
        trainer.settings = settings
        return trainer

    findings = check(
        trainer_function(make, Reader),
        Reader,
        cross_entropy,
        example=(torch.zeros(2, 5, dtype=torch.long), torch.tensor([0, 2])),
        effort="quick",
        tests=("preflight", "noise", "contribution", "separation", "sampling"),
    )
    # The trainer shuffles; everything else is right.
    assert "batch-size-fixed" in findings.bugs, str(findings)
    assert {"noise", "contribution", "separation"} <= {
        r.test for r in findings.results if r.status == "passed"
    }


OPACUS = """
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from model import build

data = TensorDataset(torch.randn(400, 8), torch.randint(3, (400,)))
loader = DataLoader(data, batch_size=40)
model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = PrivacyEngine().make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_script_with_opacus_is_checked_as_it_stands(folder):
    """Its two known faults are named, nothing else; `docs/debugging-details.md` has its seconds."""
    pytest.importorskip("opacus")
    (folder / "with_opacus.py").write_text(OPACUS)
    train = torch_script(str(folder / "with_opacus.py"))
    example = (torch.zeros(2, 8), torch.tensor([0, 2]))
    findings = check(train, build, cross_entropy, example=example, effort="quick")
    assert set(findings.bugs) == {"divisor-depends-on-dataset-size", "non-finite-record"}
    assert {"noise", "separation", "late-steps"} <= set(findings.ran)


def test_the_fork_server_imports_what_the_script_imports(folder):
    """Also what modules beside the script import; those themselves are left to the script."""
    (folder / "helper.py").write_text("import colorsys\nraise SystemExit('not imported before')\n")
    script = folder / "look.py"
    script.write_text(
        "import sys\n"
        "seen = 'colorsys' in sys.modules and 'helper' not in sys.modules\n"
        "def later():\n    import helper\n    from wave import open\n"
        "print(seen and 'wave' in sys.modules)\n"
    )
    server = CommandTraining(
        f"{sys.executable} {script} {{clip}} {{batch_size}} {{data}} {{init}} {{out}}"
    ).preloaded
    assert server is not None
    assert server.run([str(script)], 60) == (0, "True\n")
    fresh = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True
    )
    assert fresh.stdout == "False\n"
