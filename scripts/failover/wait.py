"""Waiting with a deadline."""

import time

READY_WITHIN_SECONDS = 180


def until(what, test, seconds=READY_WITHIN_SECONDS):
    """Waits until the test gives something, and gives it back."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = test()
        if found:
            return found
        time.sleep(0.25)
    raise SystemExit(f"try-failover: waited in vain for {what}")
