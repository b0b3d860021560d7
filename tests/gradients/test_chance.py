"""Draws from generators that programs share: all are noticed, and all can be taken back."""

import random

import numpy as np
import pytest
import torch

from noisewise.gradients import chance
from noisewise.gradients.chance import Chance

_HOST = torch.device("cpu")
_DRAWS = {
    "python": random.random,
    "python, normal": lambda: random.gauss(0, 1),
    "python, integers": lambda: random.randrange(1 << 80),
    "numpy": np.random.random_sample,
    "numpy, normal": np.random.standard_normal,
    "numpy, many": lambda: np.random.permutation(2000)[0],  # noqa: NPY002
}


@pytest.fixture(autouse=True)
def _generators_as_they_were():
    before = Chance(_HOST)
    yield
    before.restore()


def _asked():
    numpys = np.random.get_state(legacy=False)  # noqa: NPY002
    return random.getstate(), numpys["state"]["key"].tobytes(), str(numpys)


@pytest.mark.parametrize("draw", _DRAWS.values(), ids=_DRAWS.keys())
def test_every_draw_is_noticed_and_taken_back(draw):
    # Normal numbers come in pairs, the second without a bit of the stream; and after 624 words the
    # whole state is made anew.
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    for _ in range(300):
        random.random()
        np.random.random_sample()  # noqa: NPY002
    for _ in range(30):
        here, asked = Chance(_HOST), _asked()
        assert not here.is_unseen
        first = draw()
        assert here.is_unseen
        here.restore()
        assert not here.is_unseen
        assert _asked() == asked
        assert draw() == first


def test_torch_draws_the_same_again_and_is_no_unseen_draw():
    here = Chance(_HOST)
    first = torch.rand(3)
    assert not here.is_unseen
    here.restore()
    assert torch.equal(torch.rand(3), first)


def test_memory_is_compared_on_this_interpreter_and_not_where_a_draw_does_not_show_there():
    assert [type(access) for access in chance._SHARED] == [chance._Python, chance._Numpy]

    class Blind(chance._Python):
        def read(self):
            return bytes(chance._PYTHONS.size), None

    own = random.Random(1)
    assert not chance._works(Blind(own), chance._AskedPython(own), [own.random])


def test_another_bit_generator_is_asked():
    generator = np.random.RandomState(np.random.PCG64(3))
    access = chance._Numpy(generator)
    before = access.read()
    assert before == access.read()
    first = generator.random_sample()
    assert before != access.read()
    access.write(before)
    assert before == access.read()
    assert generator.random_sample() == first
