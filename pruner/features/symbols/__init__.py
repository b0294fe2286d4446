"""The analyzer's symbols: of GPUs, as the paper's, of CPUs, and the release's."""
