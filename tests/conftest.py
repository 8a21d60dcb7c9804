"""Property tests draw the same examples in every run, and take their time on a busy machine.

`pytest --hypothesis-profile=default` draws new ones.
"""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
