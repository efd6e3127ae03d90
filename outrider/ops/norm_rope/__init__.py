"""RMS norm and rotary position embedding."""
