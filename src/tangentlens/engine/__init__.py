"""Many tasks, in this process or on a Ray cluster. It knows nothing of models, and no result passes through it.

A task is known by its key, writes its own results where they belong, and may be done twice without harm. So whatever is
interrupted is continued by asking again for what is missing.
"""

from tangentlens.engine.here import Here
from tangentlens.engine.machines import Machines
from tangentlens.engine.on_ray import OnRay
from tangentlens.engine.task import Needs, Task

__all__ = ["Here", "Machines", "Needs", "OnRay", "Task"]
