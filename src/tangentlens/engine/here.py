"""Tasks in this process, one after the other."""

from collections.abc import Iterable

from tangentlens.engine.task import Ended, Task, attempt


class Here:
    """Does tasks in this process, with all of its threads."""

    def run(self, tasks: Iterable[Task], ended: Ended) -> None:
        """Do all tasks in their order.

        Args:
            tasks: The tasks.
            ended: Told of each task that has ended.

        >>> Here().run([Task("a", lambda: 1 / 0), Task("b", int)], lambda task, why: print(f"{task.key}: {why[:17]}."))
        a: ZeroDivisionError.
        b: .
        """
        for task in tasks:
            ended(task, attempt(task.work))
