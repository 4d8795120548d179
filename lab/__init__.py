"""lab: what does my model do to this GPU, and can I trust its numbers?"""

__version__ = "0.1.0"
