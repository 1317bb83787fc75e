"""What a step takes and gives, as values: the rows it verifies, what came of them, what the engine is told, features on their way.

It imports no other room.
Others use `StepInput` and `StepResult`; `events`, what the engine is told; `Feed`, features on their way to a drafter.
"""
