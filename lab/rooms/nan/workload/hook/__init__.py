"""A folder for PYTHONPATH: Python runs its sitecustomize when a program starts."""
