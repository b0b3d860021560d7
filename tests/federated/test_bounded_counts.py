"""Tables that prove to be counts: honest ones pass, false ones do not, and nothing is shown."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import chisquare

from noisewise.federated.sharing import bounded
from noisewise.federated.sharing.bounded import BLOCK, BoundedCounts, Point, passes
from noisewise.federated.sharing.field import PRIME, Field, multiply, reduced
from noisewise.privacy.randomness import Randomness


def seeds(number: int) -> bytes:
    return number.to_bytes(32, "little")


def published(
    kind: BoundedCounts, elements: Field, point: Point, servers: int = 2, **options
) -> list[Field]:
    own, masked = bounded.share(elements, servers, 7)
    held = [*(bounded.expand(seed, kind.length) for seed in own), masked]
    return [kind.published(part, point, first=i == 0, **options) for i, part in enumerate(held)]


def judged(kind: BoundedCounts, elements: Field, seed: int = 0, **options) -> bool:
    point = Point(seeds(seed), kind.blocks)
    return passes(published(kind, elements, point, **options), point)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_honest_tables_pass_and_give_their_counts_back(data) -> None:
    most = data.draw(st.integers(1, 3000))
    cells = data.draw(st.integers(1, 40))
    counts = np.zeros(cells, np.int64)
    left = most
    for cell in range(cells):
        counts[cell] = data.draw(st.integers(0, left))
        left -= counts[cell]
    kind = BoundedCounts(cells, most)
    elements = kind.encode(counts, 3)
    servers = data.draw(st.integers(2, 4))
    assert judged(kind, elements, data.draw(st.integers(0, 99)), servers=servers)
    assert judged(kind, elements, 1, records=int(counts.sum()))
    own, masked = bounded.share(elements, servers, 5)
    held = [*(bounded.expand(seed, kind.length) for seed in own), masked]
    total = np.zeros(cells, np.uint64)
    for part in held:
        total = reduced(total + kind.counts(part))
    assert total.tolist() == counts.tolist()


@pytest.mark.parametrize("most", [1, 2, 3, 5, 7, 8, 100, 1000])
def test_digits_write_every_number_up_to_the_most_and_no_other(most: int) -> None:
    worth = BoundedCounts(1, most).weights.astype(np.int64)
    reachable = {0}
    for one in worth.tolist():
        reachable |= {old + one for old in reachable}
    assert reachable == set(range(most + 1))


def test_counts_that_are_none_are_refused_by_their_owner() -> None:
    kind = BoundedCounts(3, 10)
    for wrong in ([4, 4, 3], [-1, 0, 0], [1, 2], [0.5, 0, 0]):
        with pytest.raises(ValueError, match=r"at most 10|3 whole numbers"):
            kind.encode(np.array(wrong))
    with pytest.raises(ValueError, match="too many for sums"):
        BoundedCounts(1 << 20, 1 << 40)


def forged(kind: BoundedCounts, numbers: list[int], **digits: int) -> Field:
    """Digits as an owner likes them, with the best proof for them."""
    written = kind._written(np.array(numbers)).reshape(-1)
    blocks = np.zeros((kind.blocks, BLOCK), np.uint64)
    blocks.reshape(-1)[: written.size] = written
    for place, value in digits.items():
        blocks.reshape(-1)[int(place[1:])] = value % PRIME
    return bounded.prove(blocks, Randomness.seeded(1))


KIND = BoundedCounts(20, 100)


@pytest.mark.parametrize(
    "elements",
    [
        forged(KIND, [5] * 20 + [99]),  # another sum
        forged(KIND, [50] * 20 + [100]),  # more than allowed, the sum at its largest
        forged(KIND, [0] * 20 + [0], p3=999),
        forged(KIND, [0] * 20 + [0], p3=-1),
        forged(KIND, [0] * 20 + [0], p0=2),
        forged(KIND, [1] + [0] * 19 + [1], p0=1, p7=2, p8=-1),  # sums agree, digits are none
        forged(KIND, [0] * 20 + [0], p140=PRIME // 2),
        forged(KIND, [5] * 20 + [0], p140=100),  # a sum in one digit that is none
    ],
    ids=range(8),
)
def test_false_tables_do_not_pass(elements: Field) -> None:
    assert not any(judged(KIND, elements, seed) for seed in range(5))


@pytest.mark.parametrize("place", [0, 10, 128, 191, 192, 193, 195, 200, -1])
def test_a_table_with_any_element_changed_does_not_pass(place: int) -> None:
    elements = KIND.encode([5] * 20, 2)
    assert judged(KIND, elements)
    elements[place] = (int(elements[place]) + 1) % PRIME
    assert not judged(KIND, elements)


def test_another_public_number_of_records_does_not_pass() -> None:
    elements = KIND.encode([2] * 20, 2)
    assert judged(KIND, elements, records=40)
    assert not judged(KIND, elements, records=41)


def test_whoever_knows_the_point_can_lie_so_it_is_drawn_after_the_tables_are_fixed() -> None:
    """One value of h is changed so that the equation holds at this point, and at no other."""
    known = Point(seeds(4), KIND.blocks)
    elements = forged(KIND, [0] * 20 + [0], p3=999)
    at_first, at_second, vanishing = bounded._at(known.x)
    parts = published(KIND, elements, known)
    whole = reduced(parts[0] + parts[1])
    values = whole[:-1]
    squares = multiply(values, reduced(values + np.uint64(PRIME - 1)))
    left = 0
    for square, factor in zip(squares.tolist(), known.factors.tolist(), strict=False):
        left += square * factor
    missing = (left - int(whole[-1])) % PRIME
    # The last element is h of the last block at the last node, by this much in Y.
    worth = int(at_second[-1]) * int(known.factors[KIND.blocks - 1]) * int(vanishing) % PRIME
    elements[-1] = (int(elements[-1]) + missing * pow(worth, -1, PRIME)) % PRIME
    assert judged(KIND, elements, 4)
    assert not judged(KIND, elements, 5)
    assert at_first[0] != 0


def test_what_is_published_has_the_same_law_for_every_table() -> None:
    """Blocks' values are uniform, and Y follows from them. False alarm below 1e-6 (chi-square)."""
    kind = BoundedCounts(4, 3)
    point = Point(seeds(9), kind.blocks)
    for counts in ([0, 0, 0, 0], [0, 1, 1, 1]):
        seen = np.zeros(16, np.int64)
        for draw in range(160):
            elements = kind.encode(counts, draw)
            first, second = published(kind, elements, point)
            whole = reduced(first + second)
            seen[int(whole[0]) >> 57] += 1
            # Nothing else is in it: the last word is what the equation says.
            square = multiply(whole[0], reduced(whole[0] + np.uint64(PRIME - 1)))
            assert multiply(square, point.factors[0]) == whole[-1]
        assert chisquare(seen).pvalue > 1e-6 / 2


def test_a_share_is_uniform_whatever_is_shared() -> None:
    kind = BoundedCounts(4, 3)
    tops = []
    for draw in range(60):
        _, masked = bounded.share(kind.encode([3, 0, 0, 0], draw), 2)
        tops.append(masked >> np.uint64(57))
    seen = np.bincount(np.concatenate(tops).astype(np.int64), minlength=16)
    assert chisquare(seen).pvalue > 1e-6


def test_proofs_of_the_wrong_length_or_outside_the_field_are_refused() -> None:
    point = Point(seeds(0), KIND.blocks)
    parts = published(KIND, KIND.encode([1] * 20), point)
    with pytest.raises(ValueError, match="different contributions"):
        passes([parts[0][:-1], parts[1]], point)
    parts[1][0] = PRIME
    with pytest.raises(ValueError, match="not in the field"):
        passes(parts, point)
    with pytest.raises(ValueError, match="32 bytes"):
        bounded.expand(b"short", 3)


def test_points_avoid_all_places_where_digits_stand() -> None:
    assert all(Point(seeds(i), 1).x > 2 * BLOCK + 1 for i in range(200))
