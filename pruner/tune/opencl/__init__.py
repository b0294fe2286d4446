"""OpenCL devices: TVM's runtime, which its wheel lacks, and launches that need no TVM."""
