"""Tables and pages. Reads records, nothing else."""
