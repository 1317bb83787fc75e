"""The coordinator: takes requests, knows who is in the cluster, places sessions, turns tokens into text. No torch."""
