"""Other engines beside this one on a CPU: the same weights and prompts, by turns, each in an environment and a process of its own."""
