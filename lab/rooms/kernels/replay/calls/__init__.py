"""The distinct calls of a recording that launched GPU work, and what each launched: a ReplayPlan."""
