"""Properties that are computed once, on first use, also where several threads work on several objects."""

import functools
import sys
from typing import Any, TypeVar, overload

_Value = TypeVar("_Value")

if sys.version_info >= (3, 12):
    cached_property = functools.cached_property
else:

    class cached_property(functools.cached_property[_Value]):
        """`functools.cached_property` as it is from Python 3.12 on.

        Before, all objects of a class shared one lock for a property, so that one thread waited while another computed
        it for an object of its own.
        """

        @overload
        def __get__(self, instance: None, owner: Any = None) -> "cached_property[_Value]": ...

        @overload
        def __get__(self, instance: object, owner: Any = None) -> _Value: ...

        def __get__(self, instance: object | None, owner: Any = None) -> "cached_property[_Value] | _Value":
            """Return the value. It then stands in the object in place of this property, which is not asked again."""
            if instance is None:
                return self
            value = self.func(instance)
            # `attrname` is None only for a property that was added to a class after it was made.
            instance.__dict__[str(self.attrname)] = value
            return value
