"""The `outrider` command. Nothing else imports this package."""
