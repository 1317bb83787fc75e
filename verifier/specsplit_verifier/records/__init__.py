"""What a step takes and gives, as values: the rows it verifies, what came of them, events of the engine, features on their way.

It imports no other room.
Others use `StepInput` and `StepResult`; `events`, the events that the engine handles; `Feed`, features on their way to a drafter.
"""
