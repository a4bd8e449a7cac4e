"""Model spec + workload → ops → limits, and memory by part. Pure arithmetic: no torch, no files, no devices."""
