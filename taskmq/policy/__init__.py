"""The rules of the queue as pure decisions: no clock, no randomness, no lock, no I/O.

``order``  who is first inside one line           ``turns``  whose turn it is between partitions
``claim``  what one reserve takes, over all queues ``lease``  what an ended lease does to a task
``retry``  what a failure does to it
"""
