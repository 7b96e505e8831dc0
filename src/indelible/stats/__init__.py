"""Statistics: from scores to metrics and a verdict, by `evaluate.evaluate`. Nothing here sees a model."""
