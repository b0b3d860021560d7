"""The tutorials run as they are printed, only shorter."""

import re
from pathlib import Path

import pytest

from noisewise.datasets import load
from noisewise.errors import DatasetError

DOCS = Path(__file__).parents[2] / "docs"


def run_page(name, folder, monkeypatch, **shorter):
    """Run all blocks of a page in one program, with some constants changed."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / name).read_text("utf-8"), re.S | re.M)
    assert blocks
    program = "\n\n".join(blocks)
    for constant, value in shorter.items():
        program, count = re.subn(
            rf"^{constant} = .*$", f"{constant} = {value}", program, flags=re.M
        )
        assert count == 1, constant
    space = {"__name__": "tutorial"}
    exec(compile(program, name, "exec"), space)
    return space


def needs(*names):
    for name in names:
        try:
            load(name, download=False)
        except DatasetError:
            pytest.skip(f"the dataset {name} is not here")


@pytest.mark.slow
def test_lora_for_text(tmp_path, monkeypatch, capsys):
    pytest.importorskip("peft")
    needs("sst2", "snli_dev_test")
    small = dict(PUBLIC_STEPS=2, SENTENCES=300, EPOCHS=0.4, BATCH=60)
    space = run_page("tutorials/text.md", tmp_path, monkeypatch, **small)
    trainer = space["trainer"]
    assert trainer.statement().steps == 2
    assert "epsilon" in capsys.readouterr().out
    learnt = {name for name, p in trainer.model.named_parameters() if p.requires_grad}
    assert all("lora" in name or "modules_to_save" in name for name in learnt)
    assert "epsilon =" in (tmp_path / "private" / "README.md").read_text("utf-8")


@pytest.mark.slow
def test_a_language_model(tmp_path, monkeypatch, capsys):
    pytest.importorskip("transformers")
    needs("sst2", "snli_dev_test")
    small = dict(PUBLIC_STEPS=2, DOCUMENTS=300, EPOCHS=0.4, BATCH=60)
    space = run_page("tutorials/language-model.md", tmp_path, monkeypatch, **small)
    assert space["trainer"].statement().unit == "one document"
    assert "one row is not one document" in capsys.readouterr().out


def test_images_with_augmentation(tmp_path, monkeypatch, capsys):
    needs("fashion_mnist")
    small = dict(PICTURES=120, EPOCHS=1, BATCH=60)
    space = run_page("tutorials/images.md", tmp_path, monkeypatch, **small)
    assert space["run"].statement().steps == 2
    assert "accuracy on public pictures" in capsys.readouterr().out


@pytest.mark.slow
def test_augmented_training_learns(tmp_path, monkeypatch):
    needs("fashion_mnist")
    space = run_page("tutorials/images.md", tmp_path, monkeypatch, PICTURES=10_000, EPOCHS=2)
    assert float(space["right"].float().mean()) > 0.6
