"""The deciding half: requests, scheduling, results. Plain Python; it never imports torch."""
