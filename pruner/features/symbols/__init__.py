"""The analyzer's symbols of a program: GPU (S1 to S8 are the paper's), CPU, and the release's."""
