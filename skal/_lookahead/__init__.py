"""What retraining on one more label would change: the mathematics behind NTK look-ahead."""
