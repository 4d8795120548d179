"""The recorder inside a training program, and the process that starts the program under it."""
