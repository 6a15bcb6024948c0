"""The queue in a relational database: one schema and one claim algorithm; only the hot statements' text differs.

``tables``     the schema, once                   ``book``      bookkeeping of queues and flows in one transaction
``transport``  verbs → short transactions         ``rows``      what passes between verbs and engine
``publish`` ``reserve`` ``settle`` ``leases`` ``control`` ``retention``      the verbs' bodies
``engine``     what an engine must bring: named statements
``rare`` ``queries``   statements off the hot path, one text for all; ``words`` how each engine spells it
``sqlite`` ``postgresql``   the engines
"""
