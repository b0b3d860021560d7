"""RNN, LSTM and GRU layers, step by step, with the weights of torch's own modules.

The input's projection is one linear layer at T positions. The hidden state's projection is
used at every step: a zero tensor added to it collects the cotangent of every step, and the
pairs (previous state, cotangent) make one contraction with T positions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from noisewise.errors import UnsupportedModelError
from noisewise.gradients.contractions import LinearContraction, Target
from noisewise.gradients.operations.dense import tapped_linear
from noisewise.gradients.operations.registry import place
from noisewise.gradients.tape import Tape
from noisewise.gradients.unnoted import unnoted

__all__ = ["RECURRENT", "run_recurrent"]

RECURRENT = (nn.RNN, nn.LSTM, nn.GRU)


class _States(torch.autograd.Function):
    """Zeros (rows, T, width) whose cotangent is paired with the states that were seen."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        shape: tuple[int, ...],
        states: list[Tensor],
        tape: Tape,
        targets: tuple[Target | None, Target | None],
    ) -> Tensor:
        ctx.states, ctx.tape, ctx.targets = states, tape, targets
        return anchor.new_zeros(shape)

    @staticmethod
    @unnoted
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        states = torch.stack(ctx.states, 1)
        each = states.shape[0] // ctx.tape.records
        contraction = LinearContraction.of(states, cotangents[0], each, *ctx.targets)
        ctx.tape.arrive(contraction)
        return None, None, None, None, None


def run_recurrent(tape: Tape, path: str, module: Any, args: tuple[Any, ...]) -> Any:
    """What the module's forward returns, with its gradients on the tape."""
    x, state = args[0], args[1] if len(args) > 1 else None
    if not isinstance(x, Tensor) or x.dim() != 3:
        raise UnsupportedModelError(
            f'{type(module).__name__} at "{path}" needs a padded batch (batch, time, features), '
            "not a packed sequence: pad it and mask the loss."
        )
    if module.proj_size:
        raise UnsupportedModelError(
            f'{type(module).__name__} at "{path}" with proj_size is not taken apart. Use a Linear '
            "layer after an LSTM without projection."
        )
    x = x if module.batch_first else x.transpose(0, 1)
    names = [target.name for p in module.parameters() if (target := tape.target(p)) is not None]
    layout = tape.layout(place(tape, type(module).__name__), x, -1, names)
    if layout.constant or (not layout.is_first and layout.order is not None):
        raise UnsupportedModelError(
            f'{type(module).__name__} at "{path}" gets records in an order that is not '
            "taken apart. "
            "Give it (batch, time, features), or (time, batch, features) with batch_first=False."
        )
    directions = 2 if module.bidirectional else 1
    finals: list[tuple[Tensor, ...]] = []
    for layer in range(module.num_layers):
        outputs = []
        for direction in range(directions):
            index = layer * directions + direction
            start = _initial(module, state, index, x)
            suffix = f"_l{layer}" + ("_reverse" if direction else "")
            sequence = x.flip(1) if direction else x
            output, final = _one_way(tape, module, suffix, sequence, start)
            outputs.append(output.flip(1) if direction else output)
            finals.append(final)
        x = torch.cat(outputs, -1) if directions == 2 else outputs[0]
        if module.dropout and layer < module.num_layers - 1:
            x = nn.functional.dropout(x, module.dropout, module.training)
    last = tuple(torch.stack(parts) for parts in zip(*finals, strict=True))
    result = x if module.batch_first else x.transpose(0, 1)
    return result, last if isinstance(module, nn.LSTM) else last[0]


def _initial(module: Any, state: Any, index: int, x: Tensor) -> tuple[Tensor, ...]:
    if state is None:
        zeros = x.new_zeros(x.shape[0], module.hidden_size)
        return (zeros, zeros) if isinstance(module, nn.LSTM) else (zeros,)
    parts = state if isinstance(module, nn.LSTM) else (state,)
    return tuple(part[index] for part in parts)


def _one_way(
    tape: Tape, module: Any, suffix: str, x: Tensor, state: tuple[Tensor, ...]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    def parameter(name: str) -> Tensor | None:
        found: Tensor | None = getattr(module, name + suffix, None) if module.bias else None
        return found

    weight_in, weight_state = (getattr(module, n + suffix) for n in ("weight_ih", "weight_hh"))
    bias_in, bias_state = parameter("bias_ih"), parameter("bias_hh")
    entering = tapped_linear(
        tape, x, weight_in, bias_in, (tape.target(weight_in), tape.target(bias_in))
    )
    targets = (tape.target(weight_state), tape.target(bias_state))
    seen: list[Tensor] = []
    collector = None
    if any(target is not None for target in targets):
        tape.use(*targets)
        anchor = weight_state if weight_state.requires_grad else bias_state
        shape = (x.shape[0], x.shape[1], weight_state.shape[0])
        collector = _States.apply(anchor, shape, seen, tape, targets)  # type: ignore[no-untyped-call]
    fixed = weight_state.detach()
    fixed_bias = None if bias_state is None else bias_state.detach()
    outputs = []
    added = None if collector is None else collector.unbind(1)
    for t, projected in enumerate(entering.unbind(1)):
        seen.append(state[0].detach())
        hidden = nn.functional.linear(state[0], fixed, fixed_bias)
        if added is not None:
            hidden = hidden + added[t]
        state = _cell(module, projected, hidden, state)
        outputs.append(state[0])
    return torch.stack(outputs, 1), state


def _cell(
    module: Any, entering: Tensor, hidden: Tensor, state: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    if isinstance(module, nn.LSTM):
        i, f, g, o = (entering + hidden).chunk(4, -1)
        memory = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(memory), memory
    if isinstance(module, nn.GRU):
        (reset_in, update_in, new_in) = entering.chunk(3, -1)
        (reset_h, update_h, new_h) = hidden.chunk(3, -1)
        reset, update = torch.sigmoid(reset_in + reset_h), torch.sigmoid(update_in + update_h)
        new = torch.tanh(new_in + reset * new_h)
        return ((1 - update) * new + update * state[0],)
    activate = torch.relu if module.nonlinearity == "relu" else torch.tanh
    return (activate(entering + hidden),)
