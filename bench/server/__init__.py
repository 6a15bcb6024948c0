"""The server's figures: what HTTP and WebSocket cost beside the store alone, both sides in one run.

One process serves, this one asks. python -m bench.server [sqlite|postgresql]… [--full] [--only NAME]
"""
