"""The subcommands of `headrace`, one file each, and the options they share."""
