"""The store in this process: the readable reference model that every other store is compared with."""

from taskmq.transport.memory.transport import MemoryTransport, open_url

__all__ = ["MemoryTransport", "open_url"]
