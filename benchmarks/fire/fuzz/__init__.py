"""The fuzz part of fire: mutated and generated messages on every RPC of every service, from both sides, beside an honest client."""
