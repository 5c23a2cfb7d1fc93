"""The admin pages: what is this actor waiting for, why did that step fail, what will happen next?

Knows ``client`` (every change goes through a handle, and what an operation means is the client's to say) and of
``store`` the clock and the rows' names. Reads of its own are in ``reads`` alone: pages cut texts in the database and
survive rows that cannot be read, which the client's answers, being exact, do not. Writes nothing.

``reads`` asks the database; ``values``, ``moments``, ``timeline`` and ``words`` turn rows into what is shown and are
pure; ``page`` puts an actor's page together; ``operations`` are the buttons; ``changelist`` pages the list without
counting; ``admin`` is what Django registers.
"""
