"""What the tests with torch share."""

import signal

# DDP imports it, which takes seconds: once here, and not in each of the processes that the tests fork.
import torch._dynamo  # noqa: F401

# A shell starts its background jobs with SIGINT ignored, and every program after them inherits that: as in a terminal again.
signal.signal(signal.SIGINT, signal.default_int_handler)
