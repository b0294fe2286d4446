"""The analyzer's symbols of a program: GPU (paper, S1 to S8), CPU, and the released code's."""
