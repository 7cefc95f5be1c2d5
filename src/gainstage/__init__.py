"""gainstage: reinforcement-learning methods as chains of stages, and the gain each brings, measured."""

__version__ = "0.1.0"
