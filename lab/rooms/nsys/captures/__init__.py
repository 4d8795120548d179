"""One capture by itself: its summary, the reports of `nsys stats`, and a copy without secrets."""
