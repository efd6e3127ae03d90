"""`outrider bench adaptive`: adaptive drafting against plain decoding and fixed budgets."""
