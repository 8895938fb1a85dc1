"""Role state: which provider session a sender continues, and who has been greeted."""
