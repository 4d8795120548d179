"""An op's overload and arguments, from the best source that a recording has."""
