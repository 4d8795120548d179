"""Plain numbers: interval arithmetic (`intervals`) and statistics that outliers cannot fool (`robust`)."""
