"""Speculation: drafters, the growth of draft trees, and the commit of accepted drafts."""
