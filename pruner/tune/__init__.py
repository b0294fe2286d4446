"""The only room that may import TVM: tasks, design spaces, build and run."""
