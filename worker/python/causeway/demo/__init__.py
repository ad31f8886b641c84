"""A run on one machine, its progress and its report: `causeway demo`, and deploy/quickstart."""
