"""The sections of a run's configuration, by who reads them."""
