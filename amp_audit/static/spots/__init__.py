"""What one call, one constant, one class or the code of one place gives away."""
