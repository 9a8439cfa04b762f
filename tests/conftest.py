"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("ladr", deadline=None)  # how long an example takes says more of the machine than of the code
settings.load_profile("ladr")
