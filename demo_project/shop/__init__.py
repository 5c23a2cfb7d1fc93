"""A small shop. ``actors.py`` is the page to read first: an order from the cart to the confirmation."""
