import math

import pytest
from hypothesis import given, strategies as st

from noisewise.errors import RelationError
from noisewise.privacy import ADD_REMOVE, REPLACE_ONE, Relation, Sensitivity

values = st.floats(0, 1e6)


def test_a_relation_is_one_of_two():
    assert Relation("replace") == REPLACE_ONE
    assert Relation.of("add-remove") is not None
    with pytest.raises(ValueError, match="relation must be one of"):
        Relation("swap")


@given(values)
def test_replacing_moves_a_sum_twice_as_far(bound):
    assert Sensitivity.of_sum(bound, relation=REPLACE_ONE).value == 2 * bound
    assert Sensitivity.of_sum(bound, relation=ADD_REMOVE).value == bound


@given(st.lists(values, min_size=1, max_size=5))
def test_parts_released_together_join_by_their_norm(parts):
    for norm, join in (("l1", math.fsum), ("l2", lambda v: math.hypot(*v)), ("linf", max)):
        joined = Sensitivity.concatenate([Sensitivity(part, norm) for part in parts])
        assert joined.value == pytest.approx(join(parts))


def test_relations_and_norms_are_never_mixed():
    one, other = Sensitivity(1.0), Sensitivity(1.0, relation=REPLACE_ONE)
    for combine in (lambda: one + other, lambda: Sensitivity.concatenate([one, other])):
        with pytest.raises(RelationError, match="different relations"):
            combine()
    with pytest.raises(ValueError, match="different norms"):
        one + Sensitivity(1.0, "l1")


def test_scaling_and_groups():
    one = Sensitivity(1.5, "l1")
    assert (-2 * one).value == 3.0
    assert one.for_group(4).value == 6.0
    with pytest.raises(ValueError, match="size"):
        one.for_group(0)
    with pytest.raises(ValueError, match="sensitivity"):
        Sensitivity(-1.0)
