"""Watts and joules: reading recorded power (`readings`) and integrating it with bounds (`energy`)."""
