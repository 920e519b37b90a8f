"""What a run can tell about itself."""
