"""A run's sites on machines of any cloud, by one file, over SkyPilot: `causeway fleet`."""
