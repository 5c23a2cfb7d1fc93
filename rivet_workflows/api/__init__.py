"""REST for actors, on Django REST framework. Reaches the product through the client alone."""
