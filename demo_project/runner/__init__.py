"""What ``demo.py`` is made of. Nothing here knows the package: it starts processes and talks HTTP to them."""
