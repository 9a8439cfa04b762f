"""The Distiller service: jobs that make a smaller student of a teacher, and the trainer processes that run them."""
