"""The coordinator: requests, aggregation, synthesis, evaluation, data cards. It never sees a private record."""
