"""The recipe that trains the pocket models from nothing: `python -m scripts.pocket --help`."""
