"""The pages of the room, one module each: check, diagnose, train."""
