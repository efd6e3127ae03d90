"""The proof that speculation changes no token, in a size for the user's own model and machine."""
