"""The store in Redis or Valkey: each verb is one Lua script on the server. Essay in ``transport.py``."""
