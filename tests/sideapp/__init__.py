"""A small app whose actors leave marks in a file, for tests that start and kill worker processes."""
