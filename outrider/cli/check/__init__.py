"""`outrider check`: proof on the user's own model and machine that speculation changes no token."""
