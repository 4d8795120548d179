"""Runs and recordings in the formats of other tools: Perfetto, Chrome, spreadsheets, Parquet, Chakra."""

from lab.serve.export.timelines import write_chrome, write_perfetto

__all__ = ["write_chrome", "write_perfetto"]
