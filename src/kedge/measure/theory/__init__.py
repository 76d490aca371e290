"""FedBug's linear model: theory and simulation of how fast clients agree."""
