"""Settings of the tests with torch."""

import signal

# DDP imports this, which takes seconds: import it once here, and not in each process that the tests fork.
import torch._dynamo  # noqa: F401

# A shell starts its background jobs with SIGINT ignored, and their children inherit that. Set the handler as in a terminal.
signal.signal(signal.SIGINT, signal.default_int_handler)
