"""How far a batch drafts, by what steps cost and drafts gain. `Adaptation` is its `DraftPolicy`."""
