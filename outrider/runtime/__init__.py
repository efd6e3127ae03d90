"""The computing half's conductor: it turns a scheduled batch into a step result."""
