"""nearpeak: what your devices can sustain, and how close each run came to it."""

__version__ = "0.1.0"
