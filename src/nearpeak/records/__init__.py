"""The dataclasses that packages exchange. Standard library only."""
