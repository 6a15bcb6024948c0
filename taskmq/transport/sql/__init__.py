"""The queue in a relational database: one schema and one claim algorithm; only the hot statements' text differs.

``tables``     the schema, once                   ``book``      bookkeeping of queues and flows in one transaction
``transport``  verbs → short transactions         ``dialect``   what an engine must bring: named statements
``publish`` ``reserve`` ``settle`` ``leases``      the verbs' bodies
``sqlite``     the SQLite engine
"""
