"""How much of each bound is used: `PYTHONPATH=src:tests python -m common.tightness`."""

from __future__ import annotations

from common import test_common_layers as layers, test_common_losses as losses


def main() -> None:
    print(f"{'layer':26s} {'quantity':10s} {'measured / bound':>16s}")
    for kind in layers.TYPES:
        for quantity, (_, _, finding) in layers.best(kind).items():
            print(f"{kind.__name__:26s} {quantity:10s} {finding.ratio:16.4f}")
    for kind in losses.TYPES:
        ratio = max(value / bound for _, value, bound in losses.measured(kind))
        print(f"{kind.__name__:26s} {'gradient':10s} {ratio:16.4f}")


if __name__ == "__main__":
    main()
