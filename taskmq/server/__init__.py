"""The server: HTTP and WebSocket in front of the same store, with identity, quotas and fair claims."""
