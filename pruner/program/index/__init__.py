"""Index arithmetic on arrays: affine forms, exact division, regions."""
