"""The mathematics of models: plain nn.Modules. No files, no caches, no graphs, no devices."""
