"""The replay engine: pure Python, no Django, no I/O, no clock, no threads, no asyncio.

One :class:`Machine` holds one actor's coroutines and history. It is fed happenings and gives back a :class:`Turn`
of orders; who carries them out, and when, is not its concern. Values beyond the codec it is handed are opaque text.
"""
