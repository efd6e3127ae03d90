"""`outrider bench accuracy`: right answers to questions with a number, with and without drafts."""
