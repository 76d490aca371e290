"""Runs of one command spread over a cluster: jobs, Ray tasks that train them, the live table."""
