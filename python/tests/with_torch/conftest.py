"""What the tests with torch share."""

import signal

# A shell starts its background jobs with SIGINT ignored, and every program after them inherits that: as in a terminal again.
signal.signal(signal.SIGINT, signal.default_int_handler)
