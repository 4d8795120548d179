"""The change by phase, module, op or kernel: where operations were launched, and two trees matched."""
