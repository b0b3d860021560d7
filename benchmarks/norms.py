"""Certified norms: how tight, how slow, and what part of a training step.

Run with ``python -m benchmarks.norms``. All figures are ratios measured in one run, next to
each other; milliseconds are given to compare rows, not machines.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from noisewise.bounds.cache import NormCache
from noisewise.bounds.norms import NormBound, conv_norm, spectral_norm


def best_ms(function: Callable[[], object], repeats: int = 3) -> float:
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def row(name: str, truth: float, bounds: dict[str, Callable[[], NormBound]]) -> None:
    cells = []
    for function in bounds.values():
        cells.append(f"{float(function()) / truth:9.5f} {best_ms(function):8.2f}")
    print(f"{name:26}{truth:9.4f}  " + "  ".join(cells))


def matrices() -> None:
    torch.manual_seed(0)
    q = torch.linalg.qr(torch.randn(512, 512, dtype=torch.float64))[0]
    cases = {
        "gaussian 128x128": torch.randn(128, 128),
        "gaussian 128x2048": torch.randn(128, 2048),
        "gaussian 512x512": torch.randn(512, 512),
        "orthogonal 512x512": q.float(),
        "slow decay 512x512": (q * torch.linspace(1, 0.9, 512)).float() @ q.float().T,
        "rank one 512x512": torch.outer(torch.randn(512), torch.randn(512)),
    }
    methods = ("auto", "frobenius", "orthogonal", "gram", "cholesky", "eigenvalue")
    print("\nMatrices: bound / true norm, milliseconds")
    print(f"{'':26}{'norm':>9}  " + "  ".join(f"{name:>18}" for name in methods))
    for name, weight in cases.items():
        truth = float(torch.linalg.matrix_norm(weight.double(), 2))
        row(
            name,
            truth,
            {m: (lambda m=m, w=weight: spectral_norm(w, method=m)) for m in methods},  # type: ignore[misc]
        )


def image_norm(weight: Tensor, stride: int, size: int = 32, steps: int = 400) -> float:
    """Norm of a zero-padded convolution by long power iteration: a lower bound, nearly exact."""
    x = torch.randn(1, weight.shape[1], size, size, dtype=torch.float64)
    weight = weight.double()
    norm = x.norm()
    for _ in range(steps):
        y = nn.functional.conv2d(x / norm, weight, stride=stride, padding=1)
        x = nn.functional.conv_transpose2d(
            y, weight, stride=stride, padding=1, output_padding=(size - 1) % stride
        )
        norm = x.norm()
    return float(norm.sqrt())


def convolutions() -> None:
    torch.manual_seed(0)
    methods = ("auto", "reshape", "flat", "sums")
    print("\n3x3 convolutions of 32x32 images: bound / true norm, milliseconds")
    print(f"{'':26}{'norm':>9}  " + "  ".join(f"{name:>18}" for name in methods))
    for out, channels, stride in ((32, 3, 1), (64, 32, 1), (128, 64, 1), (64, 64, 1), (64, 64, 2)):
        weight = torch.randn(out, channels, 3, 3) / (3.0 * channels**0.5)
        row(
            f"gaussian {channels}->{out} stride {stride}",
            image_norm(weight, stride),
            {
                m: (lambda m=m, w=weight, s=stride: conv_norm(w, stride=s, padding=1, method=m))  # type: ignore[misc]
                for m in methods
            },
        )
    box = torch.ones(1, 1, 3, 3)
    row(
        "box",
        image_norm(box, 1),
        {m: (lambda m=m: conv_norm(box, padding=1, method=m)) for m in methods},  # type: ignore[misc]
    )


def cnn(width: int = 32) -> nn.Sequential:
    """Build the convolutional network of 357k parameters of our speed comparisons."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(2 * width, 4 * width, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * width * 16, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def certify_all(model: nn.Sequential, cache: NormCache) -> float:
    product = 1.0
    for layer in model:
        if isinstance(layer, nn.Conv2d):
            product *= cache.conv_norm(layer.weight, padding=layer.padding).value
        elif isinstance(layer, nn.Linear):
            product *= cache.spectral_norm(layer.weight).value
    return product


def amortised(batch: int = 256, steps: int = 25) -> None:
    """Certify after every step; the weights move as in training, with and without DP noise."""
    print(f"\nCertification of a 357k CNN after every step, batch {batch}: part of a step")
    print(
        f"{'learning rate, noise':34}{'tolerance':>10}{'step ms':>9}{'norms ms':>9}"
        f"{'ratio':>8}{'full/step':>11}{'bound/full':>11}"
    )
    x, y = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
    for rate, noise in ((0.1, 0.0), (0.1, 0.1), (0.1, 1.0)):
        for tolerance in (0.05, 0.04, 0.02, 0.0):
            torch.manual_seed(0)
            model = cnn()
            optimizer = torch.optim.SGD(model.parameters(), rate)
            cache = NormCache(tolerance=tolerance)
            certify_all(model, cache)
            before = cache.computed
            spent = {"step": 0.0, "norms": 0.0}
            bound = 0.0
            for _ in range(steps):
                start = time.perf_counter()
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                if noise:
                    for parameter in model.parameters():
                        assert parameter.grad is not None
                        parameter.grad.add_(torch.randn_like(parameter), alpha=noise / batch)
                optimizer.step()
                middle = time.perf_counter()
                bound = certify_all(model, cache)
                end = time.perf_counter()
                spent["step"] += middle - start
                spent["norms"] += end - middle
            full = certify_all(model, NormCache())
            name = f"lr {rate}, noise deviation {noise:g}/batch"
            print(
                f"{name:34}{tolerance:10.2f}{1e3 * spent['step'] / steps:9.1f}"
                f"{1e3 * spent['norms'] / steps:9.2f}{spent['norms'] / spent['step']:8.3f}"
                f"{(cache.computed - before) / steps:11.2f}{bound / full:11.4f}"
            )


def main() -> None:
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    matrices()
    convolutions()
    amortised()


if __name__ == "__main__":
    main()
