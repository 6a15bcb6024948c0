"""``python -m taskmq`` is the ``taskmq`` command."""

from taskmq.cli.main import main

if __name__ == "__main__":
    main()
