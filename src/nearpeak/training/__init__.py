"""From a recipe and local data to trained weights: settings, loop, checkpoints, outcome."""
