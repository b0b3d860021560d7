"""Random numbers that can keep a secret: a cipher keyed from the operating system."""

from noisewise.privacy.randomness.generator import Randomness, resolve
from noisewise.privacy.randomness.keystream import RandomnessError

__all__ = ["Randomness", "RandomnessError", "resolve"]
