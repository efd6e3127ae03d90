"""What a user may set, and the one place where "auto" becomes a value."""
