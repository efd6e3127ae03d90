"""`outrider bench offline`: engines one after another on one machine, the same work for each."""
