"""Events of a Kineto trace scanned by C, several times as fast as the plain form, and never differently."""

from lab.recordings.kineto.native.scanner import library, library_state

__all__ = ["library", "library_state"]
