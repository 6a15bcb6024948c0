"""The ``taskmq`` command: one file a command, each imported when it is called."""
