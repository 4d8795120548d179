"""Reader of rocprof-compute's analysis database (`compute_*` tables): kernel metrics and a roofline.

It is no timeline. Its dispatches come from passes that replayed the kernels for counters, so their times are
not the application's, and there are no streams and no launches: `load_capture` refuses the file,
`load_metrics` reads it.
"""

from lab.recordings.rocprof_compute.metrics import KernelMetrics, Metrics, load_metrics

__all__ = ["KernelMetrics", "Metrics", "load_metrics"]
