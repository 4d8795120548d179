"""From a log's bytes to a `Log`: lines counted one by one or with numpy, and held against its report."""
