"""Search on recorded pools with a simulated clock, and how its curves are compared."""
