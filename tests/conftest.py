"""Property tests draw the same examples in every run, and take their time on a busy machine.

`pytest --hypothesis-profile=default` draws new ones.
"""

import signal

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

# A shell starts background jobs with SIGINT ignored, and the programs that tests interrupt would inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)
