"""Many tasks, in this process or on a Ray cluster. It knows nothing of models, and no result passes through it.

A task is known by its key, writes its own results where they belong, and may be done twice without harm. So whatever is
interrupted is continued by asking again for what is missing.
"""

from tangentlens.engine.here import Here
from tangentlens.engine.on_ray import OnRay
from tangentlens.engine.task import Needs, Task

# Does all of some tasks, of which one that fails does not keep others from being done.
Engine = Here | OnRay

__all__ = ["Engine", "Here", "Needs", "OnRay", "Task"]
