"""What programs do below or beside torch's functions, from a later step on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode, wrap_torch_function

import noisewise as nw
from noisewise.gradients import Clipped
from noisewise.gradients.engine import GradientEngine
from noisewise.separation.kernels import replaced
from noisewise.separation.torchs import own


def losses(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output, target, reduction="none")


def batch(records: int = 8) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(0)
    x = torch.randn(records, 6, generator=drawn)
    return x, torch.randint(3, (records,), generator=drawn)


class Late(nn.Module):
    """Mixes records from its third call on, in some way."""

    def __init__(self, mix: Callable[[Tensor, bool], Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.mix, self.late = (mix,), False

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(self.mix[0](x.clone(), self.late))))


class Mixing(Tensor):
    on = False

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        return result + 10 * result.mean(0) if cls.on else result


@wrap_torch_function(lambda x, late: (x,))
def wrapped(x: Tensor, late: bool) -> Tensor:
    return x + 10 * x.mean(0) if Late.now else x + 0


Late.now = False  # type: ignore[attr-defined]
SCALE = torch.ones(6).as_subclass(Mixing)


def swapped(x: Tensor, late: bool) -> Tensor:
    other, same = x.roll(1, 0) + x, x.clone()
    if Late.now:
        torch._C._swap_tensor_impl(same, other)
    return same


class Hooked(Late):
    def forward(self, x: Tensor) -> Tensor:
        change = (lambda t: t + 10 * t.mean(0)) if Late.now else (lambda t: t)
        hidden = self.first(x)
        torch._C._autograd._push_saved_tensors_default_hooks(change, lambda t: t)
        try:
            hidden = torch.sin(hidden)
        finally:
            torch._C._autograd._pop_saved_tensors_default_hooks()
        return self.last(hidden)


@pytest.mark.parametrize("mix", [wrapped, swapped, None, lambda x, late: x * SCALE])
def test_what_mixes_below_the_path_from_a_later_step_on_is_refused(mix: Any) -> None:
    x, y = batch()
    model = Hooked(torch.sin) if mix is None else Late(mix)
    engine = GradientEngine(model, losses, Clipped(1.0))
    try:
        engine.sum(x, y)
        engine.sum(x, y)
        Late.now = Mixing.on = True  # type: ignore[attr-defined]
        with pytest.raises(nw.UnsupportedModelError):
            engine.sum(x, y)
    finally:
        Late.now = Mixing.on = False  # type: ignore[attr-defined]


class Adding(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_no_sum_is_taken_within_a_function_mode_but_within_a_device() -> None:
    x, y = batch()
    model = nn.Linear(6, 3)
    with Adding(), pytest.raises(nw.UnsupportedModelError, match="mode"):
        nw.bounded_sum(model, losses, x, y, Clipped(1.0))
    with torch.device("cpu"):
        assert nw.bounded_sum(model, losses, x, y, Clipped(1.0)).groups


def test_torchs_functions_are_known_from_those_of_others() -> None:
    assert own(functional.cross_entropy) is not None
    assert own(torch.relu) is not None
    assert own(wrapped) is None
    assert own(lambda x: x) is None
    original = functional.scaled_dot_product_attention
    before = own(functional.multi_head_attention_forward)
    assert before is not None
    try:
        functional.scaled_dot_product_attention = lambda *a, **k: original(*a, **k)
        assert own(functional.multi_head_attention_forward) is None
    finally:
        functional.scaled_dot_product_attention = original


def test_a_replaced_kernel_is_not_torchs() -> None:
    assert "erfinv" not in replaced()
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("erfinv", lambda x: x * 1.0, "CPU")
        assert "erfinv" in replaced()
        proof = nw.prove_apart(Late(lambda x, late: torch.erfinv(x)), losses, *batch())
        assert not proof.proven
        assert "torch.library" in str(proof)
    finally:
        library._destroy()


def test_a_recurrent_layer_with_a_forward_of_its_own_is_what_is_trained() -> None:
    class Scaled(nn.GRU):
        def forward(self, x: Tensor) -> Any:
            output, last = super().forward(x * 3)
            return output * 2, last

    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Scaled(6, 3, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)[0].mean(1)

    torch.manual_seed(0)
    model, x, y = Reads(), torch.randn(4, 2, 6), torch.tensor([0, 1, 2, 0])
    found = nw.bounded_sum(model, losses, x, y, Clipped(1e9)).groups[0].gradients
    losses(model(x), y).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name].float(), parameter.grad, rtol=1e-4, atol=1e-6)


def test_hooks_of_a_loss_are_run() -> None:
    loss = nn.CrossEntropyLoss(reduction="sum")
    loss.register_forward_pre_hook(lambda module, given: (given[0] * 3, given[1]))
    model, (x, y) = nn.Linear(6, 3), batch()
    found = nw.bounded_sum(model, loss, x, y, Clipped(1e9)).groups[0].gradients
    loss(model(x), y).backward()
    torch.testing.assert_close(found["weight"].float(), model.weight.grad, rtol=1e-4, atol=1e-5)
