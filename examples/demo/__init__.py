"""What ``make demo`` runs: ``shop`` is what a user writes, ``demo`` runs it, ``story`` and ``picture`` tell of it."""
