"""Is a kernel right, how fast is it, how fast could it be, and why is it not."""
