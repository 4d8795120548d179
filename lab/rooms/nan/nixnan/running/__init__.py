"""A command under the user's nixnan.so: what is checked before it starts, its attempts, its log."""
