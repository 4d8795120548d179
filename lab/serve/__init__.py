"""All runs below a folder: an index, SQL over their tables, pages to look at, exports, tools for assistants.

A view of files: nothing here starts, changes or deletes a run. What runs hold is foreign text, and every
answer that is cut, or rests on files that could not be read, says so.
"""
