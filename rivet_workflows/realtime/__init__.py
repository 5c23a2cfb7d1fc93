"""WebSockets for actors, on Django Channels: calls, sends, and events that resume where a subscriber left off.

Reaches the product through the client alone. Events are rows first; everything that travels through channel layers or
bells is only a hint that there is something to read.
"""
