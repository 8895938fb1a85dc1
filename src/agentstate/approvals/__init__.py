"""Approvals: the jobs that wait for a person's yes, before their start and before their release."""
