"""The worker protocol ``taskmq.worker.v1`` over WebSocket."""
