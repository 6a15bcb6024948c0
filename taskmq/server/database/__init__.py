"""The server's own tables, beside the store's: who may ask, what queues are called, which sessions there are."""
