"""Scattering: what the real spectra, the folding and the small averages save.

Run with ``python -m benchmarks.scattering``. The reference multiplies and transforms on the full
grid and keeps every 2^j-th point afterwards, which gives the same features on grids that are
never coarsened. All figures are ratios measured side by side; images a second are given to
compare batch sizes, not machines.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from noisewise.nn.scattering import Scattering2d
from noisewise.nn.scattering_filters import gaussian, wavelets

IMAGES = 60_000


def direct(layer: Scattering2d) -> Callable[[Tensor], Tensor]:
    """Return the textbook order of operations: complex products on the full grid throughout."""
    height, width = layer.padded
    banks = [wavelets(height, width, j, layer.L).to(torch.complex64) for j in range(layer.J)]
    lines = [torch.fft.fft(gaussian(size, layer.J)) for size in layer.padded]
    average = torch.outer(*lines).to(torch.complex64)
    step = 2**layer.J

    def smooth(values: Tensor) -> Tensor:
        filtered = torch.fft.ifft2(torch.fft.fft2(values) * average).real
        return filtered[..., ::step, ::step][..., 1:-1, 1:-1]

    def transform(x: Tensor) -> Tensor:
        images = functional.pad(x[:, None], layer._pads(), mode="reflect")
        result = [smooth(images)]
        spectrum = torch.fft.fft2(images)
        second = []
        for j, bank in enumerate(banks):
            moduli = torch.fft.ifft2(spectrum * bank).abs()
            result.append(smooth(moduli))
            inner = torch.fft.fft2(moduli)[:, :, None]
            for coarser in banks[j + 1 :]:
                second.append(smooth(torch.fft.ifft2(inner * coarser).abs()).flatten(1, 2))
        return torch.cat(result + second, dim=1)

    return transform


def seconds(function: Callable[[], object], repeats: int = 3) -> float:
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    torch.manual_seed(0)
    layer = Scattering2d((28, 28))
    images = torch.rand(512, 28, 28)
    print(
        f"threads: {torch.get_num_threads()}; {len(images)} images of 28 by 28, J=2, L=8, order 2"
    )
    times = {}
    for size in (8, 16, 32, 64, 128, 256, 512):
        times[size] = seconds(lambda size=size: layer.features(images, batch_size=size))  # type: ignore[misc]
        rate = len(images) / times[size]
        print(
            f"batches of {size:3d}: {rate:6.0f} images a second, 60,000 in {IMAGES / rate:4.0f} s"
        )
    full = direct(layer)
    with torch.no_grad():
        slow = seconds(lambda: [full(part) for part in images.split(64)], repeats=1)
        apart = float((full(images[:64]) - layer(images[:64])).abs().max())
    print(f"full grid throughout: {slow / times[64]:.1f} times the time of batches of 64")
    print(f"largest difference of the two, through coarse grids and cropped filters: {apart:.1e}")


if __name__ == "__main__":
    main()
