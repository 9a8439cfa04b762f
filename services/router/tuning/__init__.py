"""Parameters of the policy, tuned while it works."""
