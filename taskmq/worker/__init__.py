"""The runtime: fetch tasks, run handlers, keep leases, stop in order. ``worker.py`` tells how it hangs together."""
