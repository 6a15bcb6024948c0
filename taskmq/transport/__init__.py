"""Stores: one interface (``base``), a reference model (``memory``), and one package for each kind of store."""
