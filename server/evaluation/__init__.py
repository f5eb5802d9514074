"""What a synthetic set is worth: learners, metrics, continual learning."""
