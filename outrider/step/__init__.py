"""From a scheduled batch to a running program: row table, shapes, plans, executors."""
