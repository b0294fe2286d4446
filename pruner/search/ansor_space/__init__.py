"""The decision space of Ansor's sketches, explored without TVM."""
