"""The pages of `lab serve`: a view of files for one person."""
