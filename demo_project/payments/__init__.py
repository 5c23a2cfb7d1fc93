"""A payment service that is not part of the shop: another process, another database, and not quite reliable.

The shop can only talk to it over HTTP, so whether an order was charged twice, or not at all, is decided by a
ledger that neither the shop nor its workflows can write to. Standard library only.
"""
