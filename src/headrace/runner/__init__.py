"""Turns StepPlans into StepResults: owns every tensor, and no policy."""
