"""Who owns which page of KV, and what can be served again. Decided on the host, without torch."""
