"""Time a callable fairly: events, warm-up, cold cache, sensor windows."""
