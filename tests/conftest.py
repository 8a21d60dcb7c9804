"""Property tests draw the same examples in every run, and have no deadline, for the sake of busy machines.

`pytest --hypothesis-profile=default` draws new ones.
"""

import signal

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

# A shell starts background jobs with SIGINT ignored; the programs that the tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
