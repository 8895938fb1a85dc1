"""What knows databases and no area."""
