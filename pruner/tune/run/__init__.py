"""A tuning run: tasks, rounds, learning, the journal, the database and what a resume needs."""
