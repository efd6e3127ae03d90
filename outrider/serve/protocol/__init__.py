"""What goes over HTTP, in the shapes of the APIs that clients speak."""
