"""Which devices are here, what their makers promise, and what their sensors say."""
