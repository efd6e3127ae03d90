"""Requests that come and go: `outrider bench offline --churn`."""
