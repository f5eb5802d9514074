"""What may be published, in formats that others read: Hugging Face, Croissant, the registry of DP deployments."""
