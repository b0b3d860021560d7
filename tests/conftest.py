"""Settings for all tests: hypothesis draws the same cases every time, so CI never flickers."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "noisewise",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("noisewise")
