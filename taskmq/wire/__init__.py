"""What the server and its clients share: strict JSON, error codes, times, the credentials file."""
