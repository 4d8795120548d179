"""The blocks of the sweep's page: cards, and a figure with its table per topic."""
